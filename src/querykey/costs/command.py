"""The work of `qk cost`: a target's name and options in, a report out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from querykey.costs.inputs import CostError, Inputs, Named, NoBackwardError, OutsideError, parse
from querykey.costs.measure import cost
from querykey.costs.measured_model import refuse_lazy
from querykey.costs.over import first_values
from querykey.costs.render import View, page
from querykey.costs.report import CostReport, plain
from querykey.costs.timing.calibration import Calibration, calibrate, place, read
from querykey.costs.versus import chart, versus
from querykey.show import unwritable, write_file
from querykey.targets import Input, Target, outline, parse_fields, source_of
from querykey.words import checked

DIGITS = 18  # no axis of a tensor needs more


@checked
def cost_of_target(
    name: str,
    fields: Sequence[str] = (),
    inputs: Sequence[str] = (),
    at: str = "",
    attention: str = "flash",
    phase: str = "train",
    over: str = "",
) -> CostReport:
    """Build a target at its own size and return its report, at the sizes in `at` if there are any.

    `fields` set what its configuration or its factory leaves open, as in `hidden_size=8192`, and
    those that `over` names, separated by commas, stay free.
    """
    if not name:
        raise CostError("name a target, as in qk cost hf:gpt2; qk targets lists them")
    sizes = parse_sizes(at)
    if over:
        report = _over_fields(name, fields, inputs, parse_names(over), attention, phase)
        return report.at(**sizes) if sizes else report
    target = outline(name, parse_fields(fields))
    refuse_lazy(target.model)
    named = parse_inputs(inputs) if inputs else inputs_of(target)
    # A wrong name in `at` is refused by the report, which knows all sizes.
    free = Inputs.of(named).names()
    near = {size: value for size, value in sizes.items() if value >= 5 and size in free}
    try:
        report = _cost(target, named, attention, near, phase)
    except CostError:
        # The sizes may be too large for the model: the formula of small ones says how large.
        report = _cost(target, named, attention, {}, phase)
    report.settings["target"] = " ".join([target.name, *fields])
    if target.inputs:  # or the note says why they are not known
        report.settings["built"] = target.note
    try:
        return report.at(**sizes) if sizes else report
    except OutsideError as error:  # a formula that holds there was looked for above
        raise CostError(f"{error.fact}, and the model has none there") from None


def _over_fields(
    name: str,
    fields: Sequence[str],
    inputs: Sequence[str],
    over: list[str],
    attention: str,
    phase: str,
) -> CostReport:
    """Return the report in fields of the target's configuration, or arguments of its factory."""
    values = parse_fields(fields)
    for field in set(over) & {*values}:
        raise CostError(f"`{field}` is set and kept free too; leave out {field}={values[field]}")
    source = source_of(name, values)
    if inputs:
        named = parse_inputs(inputs)
    else:
        named = inputs_of(outline(name, {**values, **first_values(over, source)}))
    report = cost(source, named, attention=attention, phase=phase, over=over)
    report.settings["target"] = " ".join([name, *fields])
    return report


def _cost(
    target: Target, inputs: Any, attention: str, near: dict[str, int], phase: str
) -> CostReport:
    """Return the report with the backward pass, or without where there is none."""
    try:
        return cost(target.model, inputs, attention=attention, near=near, phase=phase)
    except NoBackwardError:
        report = cost(target.model, inputs, attention=attention, near=near, backward=False)
        report.notes.append("there is no backward pass: no trainable weight reaches the output")
        return report


def inputs_of(target: Target) -> dict[str, Named]:
    """Return what the target's forward requires, as shapes with named sizes."""
    if not target.inputs:
        raise CostError(f"`{target.name}`: {target.note} with --input NAME=KIND(AXIS, ...)")
    return {argument.name: _named(argument) for argument in target.inputs if argument.required}


def parse_inputs(texts: Sequence[str]) -> Any:
    """Return the inputs that every `--input` stands for: all with names, or all without."""
    pairs = [parse(text) for text in texts]
    names = [name for name, _ in pairs]
    if all(name is None for name in names):
        return tuple(named for _, named in pairs)
    if None in names:
        raise CostError("give every input a name, or none of them")
    return {str(name): named for name, named in pairs}


def parse_names(text: str) -> list[str]:
    """Return the names in a text such as `hidden_size,num_hidden_layers`."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise CostError(
                f"--over: `{name}` is no field; write FIELD,FIELD, as in hidden_size,vocab_size"
            )
    return names


def parse_sizes(text: str) -> dict[str, int]:
    """Return the sizes that a text such as `batch=8,seq=1024` stands for."""
    sizes = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, size = (word.strip() for word in part.partition("="))
        if not name.isidentifier() or not size.isdecimal():
            raise CostError(f"`{part}` is no size; write NAME=NUMBER, as in --at batch=8,seq=1024")
        if len(size) > DIGITS:
            raise CostError(f"--at: `{name}` has {len(size)} digits; write at most {DIGITS}")
        if name in sizes:
            raise CostError(f"--at gives `{name}` twice; write each size once")
        sizes[name] = int(size)
    return sizes


@checked
def refuse_page(file: str | Path) -> None:
    """Raise the error for a page that cannot be written, before the work is done."""
    reason = unwritable(Path(file)) if file else ""
    if reason:
        raise CostError(f"nothing can be written to `{file}`: {reason}")


@checked
def view_of(
    report: CostReport,
    modules: bool = False,
    full: bool = False,
    device: str = "",
    dtype: str = "",
    other: CostReport | None = None,
    predict: bool = False,
) -> View:
    """Return what is shown of a report beside its formulas: a device's bound, another target.

    With `predict`, or where the device is the one that was measured, its time is predicted too.
    """
    if dtype and not device:
        raise CostError("--dtype is that of a device's bound; name one, as in --device h200")
    if device and report.symbols:
        free = ",".join(f"{name}=8" for name in report.symbols)
        raise CostError(f"--device: a time needs all sizes; put them in, as in --at {free}")
    time = report.time(device, dtype or None) if device else None
    calibration = measured_device(device) if device or predict else None
    prediction = None
    if calibration is not None and not report.symbols and dtype in ("", *calibration.dtypes):
        prediction = report.predict(calibration, dtype or None)
    compared = versus(report, other) if other is not None else ()
    return View(modules, full, time, compared, prediction)


def calibrated() -> str:
    """Measure this device, keep the result, and return a sentence about it."""
    calibration = calibrate()
    dtypes = " and ".join(calibration.dtypes)
    return (
        f"Measured {calibration.name} ({calibration.device}, {calibration.threads} thread(s), "
        f"{dtypes}) in {calibration.seconds:.0f} s: {len(calibration.operations)} operations. "
        f"On {len(calibration.errors) // 2} small models the predicted time was off by "
        f"{calibration.error:.0%} in the median. It is kept in {place(calibration.device)}."
    )


def measured_device(device: str) -> Calibration | None:
    """Return the calibration of a device named on the command line, or of this machine's."""
    if device == "cpu":
        return read("cpu")
    calibration = read("cuda")
    if not device:
        return calibration or read("cpu")
    return calibration if calibration is not None and device in calibration.name.lower() else None


@checked
def plotted(report: CostReport, other: CostReport | None, names: Sequence[str], text: str) -> str:
    """Return the SVG of what `--plot seq=128:131072` asks for."""
    size, _, span = text.partition("=")
    low, _, high = span.partition(":")
    if not (low.isdecimal() and high.isdecimal() and 0 < int(low) < int(high)):
        raise CostError(f"`{text}` is no range of a size; write --plot seq=128:131072")
    if max(len(low), len(high)) > DIGITS:
        raise CostError(f"--plot: write sizes of at most {DIGITS} digits")
    reports = [report, *([other] if other is not None else [])]
    return chart([*zip(names, reports, strict=False)], size.strip(), int(low), int(high))


@checked
def as_json(report: CostReport, view: View) -> str:
    """Return the report as JSON, with the bound of a device and the comparison where asked for."""
    values = report.to_dict()
    values["time"] = view.time.to_dict() if view.time is not None else None
    prediction = view.prediction
    values["predicted"] = vars(prediction) if prediction is not None else None
    values["versus"] = [
        {
            "of": row.of, "first": plain(row.first), "second": plain(row.second),
            "equal": {c.size: [str(root) for root in c.crossings] for c in row.comparisons},
        }
        for row in view.compared
    ]  # fmt: skip
    return json.dumps(values, indent=1)


@checked
def write_page(
    report: CostReport,
    target: str,
    file: str | Path,
    view: View | None = None,
    figures: Sequence[str] = (),
) -> None:
    """Write the report as one HTML page."""
    write_file(file, page(report, target, view, figures))


def _named(argument: Input) -> Named:
    if argument.kind in ("tokens", "mask", "positions"):
        low, high = {"mask": (1, 2), "positions": (0, 1)}.get(
            argument.kind, (argument.low, argument.high)
        )
        return Named("tokens", argument.axes, low=low, high=high)
    return Named("images" if argument.kind == "image" else "array", argument.axes)
