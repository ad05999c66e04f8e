"""The verb `qk cost`: what a model costs, as formulas."""

from __future__ import annotations

from querykey.cli.output import display, prints_aside, say, status


def cost(
    target: str = "",
    /,
    *field: str,
    input: tuple[str, ...] = (),
    at: str = "",
    over: str = "",
    attention: str = "flash",
    phase: str = "train",
    device: str = "",
    dtype: str = "",
    versus: str = "",
    plot: str = "",
    modules: bool = False,
    full: bool = False,
    calibrate: bool = False,
    json: bool = False,
    html: str = "",
) -> int:
    """Show what a target costs, as exact formulas in named sizes.

    Parameters
    ----------
    target
        A model by name: file.py:factory, hf:gpt2, a config.json or a preset (`qk targets` lists the
        ways). `hf:NAME` has the sizes of its default configuration; no weights are needed.
    field
        Change fields of the configuration, arguments of the factory, or sizes of the preset, as in
        hidden_size=8192 num_hidden_layers=80.
    input
        An argument of forward, such as ids=tokens(batch,seq), x=array(n,64) or
        images(batch,3,32,32). Repeat it for every argument. By default they are found by trying.
    at
        Put these sizes into the formulas, as in batch=8,seq=1024.
    over
        Keep fields of the configuration, or arguments of the factory or preset, as names in the
        formulas: hidden_size,num_hidden_layers.
    attention
        How scaled_dot_product_attention is counted: flash (one fused operation) or math.
    phase
        train (forward and backward), prefill (a prompt is read) or decode (one more token).
    device
        Also show the least time on h200, h100, a100 or cpu, and whether arithmetic or memory limits
        it. All sizes must be given with --at.
    dtype
        The precision of weights and floating inputs on that device, such as bfloat16.
    versus
        Another target, quoted with its fields, as in "hf:gpt2 n_layer=6": show both costs, and the
        sizes at which they are equal.
    plot
        Draw the FLOPs against a size, as in seq=128:131072, as SVG; with --html, in the page.
    modules
        Show the modules at every depth.
    full
        Show every value and every column, however wide.
    calibrate
        First measure this device, for at most 60 s; from then on the time of a pass at given sizes
        is predicted. The measurements are kept in the user's cache folder.
    json
        Print one JSON object instead of tables; docs/json.md describes it.
    html
        Write one HTML page to this file instead of printing.
    """
    if calibrate:
        with status("measuring this device, for at most 60 s"):
            from querykey.costs import calibrated

            sentence = calibrated()
        if not target:
            say(sentence)
            return 0
    with status(f"deriving the cost of {target}"), prints_aside():
        from querykey.costs import (
            as_json,
            cost_of_target,
            plotted,
            refuse_page,
            tables,
            view_of,
            write_page,
        )

        refuse_page(html)
        report = cost_of_target(target, field, input, at, attention, phase, over)
        second, *fields = versus.split() or [""]
        other = cost_of_target(second, fields, input, at, attention, phase) if second else None
        view = view_of(report, modules, full, device, dtype, other, calibrate)
        drawing = plotted(report, other, (target, second), plot) if plot else ""
        # What is derived when it is first asked for runs the model too.
        if html:
            write_page(report, target, html, view, [drawing] if drawing else ())
        shown = as_json(report, view) if json else tables(report, view)
    if json or (drawing and not html):
        print(shown if json else drawing)
    elif not html:
        display(*shown)
    return 0
