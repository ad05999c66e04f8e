"""The command `qk`: one function per verb.

Every error is one sentence on standard error. Exit codes: 0 well, 2 a bad call or a target that
cannot be built; a verb with more of them says so in its help.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App, CycloptsError, Parameter

from querykey.errors import QuerykeyError, visible

if TYPE_CHECKING:
    from rich.status import Status

app = App(
    name="qk",
    help="An attention workbench: what a mechanism is, what it costs, whether it is right.",
    version=lambda: f"querykey {version('querykey')}",
    default_parameter=Parameter(negative=""),  # no --no-json beside --json
    suppress_keyboard_interrupt=False,  # `run` asks whose it is
)


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    sys.exit(run(sys.argv[1:] if words is None else words))


def run(words: Sequence[str]) -> int:
    """Run the command line and return its exit code."""
    from querykey.show import console, until_the_reader_leaves

    code, pressed = 0, []
    try:
        with _ctrl_c() as pressed, until_the_reader_leaves():
            code = app(
                words,
                console=console(),
                exit_on_error=False,
                print_error=False,
                result_action="return_value",
            )
    except CycloptsError as error:
        return _refuse(f"{_sentence(str(error))} See `qk --help`.")
    except QuerykeyError as error:  # anything else is a defect and shows its traceback
        return _refuse(str(error))
    except KeyboardInterrupt as error:
        from querykey.words import raised

        return 130 if pressed else _refuse(f"the code that was run raised {raised(error)}")
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.stdout = None
        return _refuse("there is no room left where the output was to be written")
    return code or 0


@contextmanager
def _ctrl_c() -> Iterator[list[int]]:
    """Yield a list that is empty until the user presses Ctrl-C, which still raises.

    A model may raise KeyboardInterrupt too, and that is not the user's.
    """
    pressed: list[int] = []

    def press(number: int, frame: Any) -> None:
        pressed.append(number)
        signal.default_int_handler(number, frame)

    elsewhere = threading.current_thread() is not threading.main_thread()
    if elsewhere or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield [signal.SIGINT]  # whoever calls us watches by itself
        return
    signal.signal(signal.SIGINT, press)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@app.command
def targets(*names: str) -> int:
    """List the ways to name a TARGET, or build the named targets and describe them.

    Parameters
    ----------
    names
        `file.py:factory`, `package.module:factory`, `hf:NAME[:causal|masked|seq2seq]`, a folder
        with config.json and safetensors, or a preset.
    """
    if not names:
        _print(_kinds_of_target())
        return 0
    for name in names:
        _describe(name)
    return 0


@app.command
def check(
    *targets: str,
    law: list[str] | None = None,
    kind: str | None = None,
    input: tuple[str, ...] = (),
    seed: int = 0,
    like: str | None = None,
    timeout: float = 120.0,
    repro: Path | None = None,
    traceback: bool = False,
    json: bool = False,
    html: Path | None = None,
    junit: Path | None = None,
    sarif: Path | None = None,
    baseline: Path | None = None,
    store: Path | None = None,
    training: str | None = None,
    resume: str | None = None,
) -> int:
    """Try the laws of attention models on each TARGET, and name the module that breaks one.

    With --training, a function that trains a few steps is watched in place of a TARGET.

    Exit code 0: no law is broken, or none that the baseline does not know; 1: a law is broken; 2: a
    bad call, or nothing could be built; 3: some target failed to run.

    Parameters
    ----------
    targets
        As for `qk targets`; `hf:*` means every Hugging Face architecture with a text head.
    law
        Only this law, or those that begin so, as in `--law causality`; may be repeated.
    kind
        What the models are meant to be, where trying could mislead: decoder, encoder,
        encoder-decoder or vision.
    input
        An argument of forward, where it cannot be found out: ids=tokens(batch,seq),
        x=array(batch,seq,64), images(batch,3,32,32). Repeat it for every argument.
    seed
        Of random weights and inputs, and of what a factory draws.
    like
        Another TARGET that each is meant to be the same as: the law `agreement` compares them.
    timeout
        Stop a target after so many seconds.
    repro
        Write a script into this folder for every breach, which shows it without querykey's checks.
    traceback
        Print the whole traceback of what a model raised.
    json
        Print one JSON list instead of a report.
    html
        Also write one self-contained HTML page to this file.
    junit
        Also write the verdicts to this file as JUnit XML, which CI servers read.
    sarif
        Also write the breaches to this file as SARIF, which code hosts show at their lines.
    baseline
        What an earlier `--json` printed: a law that was broken then does not fail.
    store
        Keep every finished report in this file, and go on from there next time.
    training
        Watch this function, file.py:run, which trains a few steps: `qk laws training` has its laws.
    resume
        A function, file.py:resume, that does what --training does, and stops, saves and loads.
    """
    if training is not None or resume is not None:
        return _check_training(
            (*targets, *(law or ()), *input, kind, like, store), training, resume,
            (json, html, junit, sarif, repro, traceback), baseline,
        )  # fmt: skip
    if not targets:
        return _refuse("name at least one TARGET; `qk targets` lists the ways to name one")
    if not timeout > 0:
        return _refuse(f"--timeout is a number of seconds above 0, not {timeout:g}")
    from querykey.laws import Limits, Outputs, asked, run_command

    question = asked(law, kind, input, seed, like)
    outputs = Outputs(json, html, junit, sarif, repro, traceback)
    return run_command(targets, question, outputs, baseline, store, Limits(seconds=timeout))


def _check_training(
    others: Sequence[object],
    training: str | None,
    resume: str | None,
    outputs: tuple[bool, Path | None, Path | None, Path | None, Path | None, bool],
    baseline: Path | None,
) -> int:
    """Watch a function that trains; what is said of models has no place beside it."""
    if training is None:
        return _refuse("--resume goes with --training, which names the function without a stop")
    if any(other is not None for other in others):
        return _refuse(
            "--training is watched by itself; "
            "leave out TARGET, --law, --kind, --like, --input and --store"
        )
    from querykey.laws import Outputs, run_training_command

    return run_training_command(training, resume, Outputs(*outputs), baseline, _prints_aside())


@app.command
def laws(name: str = "", /) -> int:
    """List the laws: what each says, why it matters, and how it is tried.

    Parameters
    ----------
    name
        Only this law, or those that begin so, as in `qk laws causality`: each in full.
    """
    with _status("loading the laws"):
        from querykey.laws import LAWS, TRAINING_LAWS, described, terminal_table
    if name:
        _say(described(name))
    else:
        _print(terminal_table((*LAWS, *TRAINING_LAWS)))
    return 0


@app.command
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
        As for `qk targets`, but at its own size: `hf:NAME` has the sizes of its default
        configuration, and a config.json needs no weights.
    field
        Set fields of the configuration, arguments of the factory, or sizes of the preset first:
        hidden_size=8192 num_hidden_layers=80.
    input
        An argument of the model's forward, for models whose arguments cannot be found out:
        ids=tokens(batch,seq), x=array(n,64), images(batch,3,32,32). Repeat it for every argument.
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
        Also show the least time on h200, h100, a100 or cpu, and what binds it; give all sizes.
    dtype
        The precision of weights and floating inputs on that device, such as bfloat16.
    versus
        Another target, with its fields in the same word; show both and where they cost the same.
    plot
        Draw the FLOPs against a size, seq=128:131072, as SVG; with --html into the page.
    modules
        Show the modules at every depth.
    full
        Show every value and every column, however wide.
    calibrate
        First measure this device, for at most 60 s, so that the time of a pass at given sizes is
        predicted here; what was measured is kept in the user's cache folder.
    json
        Print one JSON object instead of tables; docs/json.md describes it.
    html
        Write one HTML page to this file instead of printing.
    """
    if calibrate:
        with _status("measuring this device, for at most 60 s"):
            from querykey.costs import calibrated

            sentence = calibrated()
        if not target:
            _say(sentence)
            return 0
    with _status(f"deriving the cost of {target}"), _prints_aside():
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
        _print(*shown)
    return 0


@app.command
def generate(
    folder: str,
    /,
    *,
    prompt: str,
    tokens: int = 100,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
) -> int:
    """Continue a prompt with the model of a folder, token by token.

    Parameters
    ----------
    folder
        With config.json and safetensors; its tokenizer.json is used where it has one, bytes else.
    prompt
        The text to continue.
    tokens
        How many tokens to say at most.
    temperature
        How freely tokens are drawn; the likeliest is taken unless this, top-k or top-p is given.
    top_k
        Draw among so many likeliest tokens.
    top_p
        Draw among the fewest tokens that have this much probability together.
    seed
        Draw the same tokens again.
    """
    with _status(f"loading {folder}"):
        from querykey.models import Speaker
    said = False
    try:
        with _status(f"loading {folder}"):
            speaker = Speaker.of(folder)
        for piece in speaker.say(prompt, tokens, temperature, top_k, top_p, seed):
            print(piece, end="", flush=True)
            said = True
        print()
    except ValueError as error:
        if said:  # the refusal is no part of the text
            print(flush=True)
        return _refuse(" ".join(str(error).split()))
    return 0


@app.command
def train(
    config: str | None = None, /, *, list: bool = False, check: bool = False, **fields: str
) -> int:
    """Train a model; the same command goes on where a run was stopped.

    Under torchrun (`torchrun --nproc-per-node 2 --no-python qk train ...`) ranks train together.

    Parameters
    ----------
    config
        A TOML file, or the name of a recipe; none: the defaults.
    list
        Show the recipes, and every name and flag.
    check
        Only watch the first steps, by the laws of training (`qk laws training`), and report. Exit
        code 0: no law is broken; 1: a law is broken; 3: the run failed.
    fields
        Any field of the configuration, as `--steps 500` or `--optimizer-rate 1e-3`.
    """
    with _status("loading"):
        from querykey.train import check_command, listing, summary, train_command
    if list:
        _print(*listing())
        return 0
    if check:
        report = check_command(config, fields)
        _print(*report.paragraphs())
        return 1 if report.violations else 3 if report.failed else 0
    result = train_command(config, fields)
    _say(summary(result))
    return 0


@app.command
def lab(
    *names: str,
    all: bool = False,
    quick: bool = False,
    again: bool = False,
    out: Path = Path("."),
) -> int:
    """Measure what five course documents claim about attention, and judge every claim.

    Each experiment writes a folder lab/NAME: figures, measurement.json and page.md.

    Parameters
    ----------
    names
        Experiments to run; without any, they are listed.
    all
        Run all of them, and write the ledger: claims.md and claims.json.
    quick
        Measure less: seconds for each experiment. A claim that this cannot decide is left open.
    again
        Measure again what is stored already, as deep and by the same code.
    out
        The folder to write into.
    """
    with _status("loading the experiments"):
        from querykey.lab import EXPERIMENTS, list_experiments, run_experiments, write_ledger
    chosen = tuple(EXPERIMENTS) if all else names
    if not chosen:
        _print(list_experiments())
        return 0
    with _status("measuring") as status:
        depth = "quick" if quick else "full"
        for line in run_experiments(chosen, depth, out, again, status.update):
            _say(line)
    if all:
        _print(write_ledger(out))
    return 0


@app.command
def report(run: str, /, *, html: str = "") -> int:
    """Write one HTML page about a training run: its curves, checkpoints and configuration.

    The run may still be going.

    Parameters
    ----------
    run
        The folder of the run, as `qk train` wrote it.
    html
        Write the page to this file, not to report.html in the folder of the run.
    """
    with _status("reading the run"):
        from querykey.train import write_report

        file = write_report(run, html)
    _say(f"{file}")
    return 0


@app.command
def demo() -> int:
    """Show in a few seconds what querykey does."""
    _show_a_leak()
    _say("A target is a model you can name. These are the ways to name one:")
    _print(_kinds_of_target())
    name = "hf:gpt2" if _has("transformers") else "decoder"
    _say(f"One of them, built without any download and described (`qk targets {name}`):\n")
    _describe(name)
    _say(f"What it costs, as a formula; nothing was computed (`qk cost {name}`):\n")
    _cost_in_short(name)
    _say("Next: `qk check YOUR_FILE.py:YOUR_FACTORY`, and `qk --help`.")
    return 0


def _show_a_leak() -> None:
    from querykey.laws import LEAK, explained, leaky_model

    _say("A small language model. In one of its three layers the mask is off by one:\n")
    _say("".join(f"    {line}\n" for line in LEAK.strip().splitlines()))
    with _status("checking"):
        from querykey.laws import check as check_model

        report = check_model(leaky_model())
    _say("`qk check` knows none of that. It tries what must not matter, and finds:\n")
    rows = [f for f in report.laws if f.verdict != "not-applicable"]
    from querykey.show import table

    _print(table(("law", "verdict", "module"), [(f.law, f.verdict, f.module or "") for f in rows]))
    _say(explained(report.law("causality.perturb")) + "\n")


def _kinds_of_target():
    from querykey.show import table
    from querykey.targets import PRESETS

    rows = [
        ("file.py:factory", "a callable in your file that returns a torch.nn.Module"),
        ("package.module:factory", "the same in an installed package"),
        ("hf:NAME", "a Hugging Face architecture by its model_type: shrunk, random weights"),
        ("hf:NAME:HEAD", "with a causal, masked or seq2seq head"),
        ("a folder", "with config.json and safetensors"),
        *((name, f"our preset, {where.split(':')[1]}()") for name, where in PRESETS.items()),
    ]
    return table(("TARGET", "what it is"), rows)


def _describe(name: str) -> None:
    with _status(f"building {name}"), _prints_aside():
        from querykey.targets import build, describe

        parts = describe(build(name))
    _print(*parts)


def _cost_in_short(name: str) -> None:
    with _status(f"deriving the cost of {name}"):
        from querykey.costs import cost_of_target, totals
        from querykey.show import table

        report = cost_of_target(name)
    _print(table(("cost", f"in {', '.join(report.symbols)}"), totals(report)[:6]))
    _say(f"It grows as {report.order('flops.forward')}.\n")


@contextmanager
def _status(words: str) -> Iterator[Status]:
    """Show on a terminal that something is under way; standard output stays clean."""
    from rich.console import Console

    with Console(stderr=True).status(words) as status:
        yield status


@contextmanager
def _prints_aside() -> Iterator[None]:
    """Send what a model prints, from Python or from C, to standard error: it is not our answer."""
    import ctypes

    ours = sys.stdout
    if ours is None or sys.stderr is None:  # closed by the caller
        yield
        return
    ours.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        ours.flush()
        ctypes.CDLL(None).fflush(None)  # what C has not written yet
        os.dup2(kept, 1)
        os.close(kept)


def _print(*parts) -> None:
    from querykey.show import stdout

    console = stdout()
    for part in parts:
        console.print(part)


def _say(words: str) -> None:
    print(words)


def _refuse(sentence: str) -> int:
    print(f"qk: {visible(sentence)}", file=sys.stderr)
    return 2


def _sentence(words: str) -> str:
    words = " ".join(words.split())
    return words if words.endswith((".", "?", "!")) else f"{words}."


def _has(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None
