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
import warnings
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
    help="An attention workbench: is a model right, what does it cost, and how is it trained?",
    version=lambda: f"querykey {version('querykey')}",
    default_parameter=Parameter(negative=""),  # no --no-json beside --json
    suppress_keyboard_interrupt=False,  # `run` asks whose it is
)


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    warnings.showwarning = _show_warning
    sys.exit(run(sys.argv[1:] if words is None else words))


def _show_warning(message: Warning | str, *where: Any) -> None:
    """Print a warning as a sentence; the line of code that it comes from is not the user's."""
    print(f"qk: {visible(str(message))}", file=sys.stderr)


def run(words: Sequence[str]) -> int:
    """Run the command line and return its exit code."""
    from querykey.show import console, until_the_reader_leaves

    code, pressed = 0, []
    if not _is_somewhere():
        return _refuse("the current folder has been deleted; change to one that is there")
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


def _is_somewhere() -> bool:
    """Return whether the current folder exists: torch ends a process that computes elsewhere."""
    try:
        return bool(os.getcwd())
    except OSError:
        return False


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
    """List the ways to name a TARGET and our presets, or build targets and describe them.

    Parameters
    ----------
    names
        `file.py:factory`, `package.module:factory`, `hf:NAME[:causal|masked|seq2seq]`, a folder
        with config.json and safetensors, or a preset.
    """
    if not names:
        _print(_ways_to_name_a_target(), _presets())
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

    A law is a rule that every attention model of its kind must obey: no token sees a later one,
    padding changes nothing, the cache changes nothing. `qk laws` lists them. With --training, a
    function that trains a few steps is watched in place of a TARGET.

    Exit code 0: no law is broken, or only laws that the baseline has as broken; 1: a law is broken;
    2: a bad call, or nothing could be built; 3: some target failed to run.

    Parameters
    ----------
    targets
        Models by name: file.py:factory, hf:gpt2, a folder or a preset (`qk targets` lists the
        ways). `hf:*` means every Hugging Face architecture with a text head.
    law
        Try only this law, or only the laws whose names begin so, as in `--law causality`. May be
        repeated.
    kind
        What the models are meant to be: decoder, encoder, encoder-decoder or vision. By default
        this is found by trying.
    input
        An argument of forward, such as ids=tokens(batch,seq), x=array(batch,seq,64) or
        images(batch,3,32,32). Repeat it for every argument. By default they are found by trying.
    seed
        The seed of random weights and inputs, and of what a factory draws.
    like
        Another TARGET whose outputs must be the same; the law `agreement` compares them.
    timeout
        Give up on a target after this many seconds.
    repro
        Write a script for every breach into this folder; it shows the breach in plain torch.
    traceback
        Print the whole traceback of an error that a model raised.
    json
        Print one JSON list instead of a report.
    html
        Also write one self-contained HTML page to this file.
    junit
        Also write the verdicts to this file as JUnit XML, which CI servers read.
    sarif
        Also write the breaches to this file as SARIF, which code hosts show beside the source.
    baseline
        A file that an earlier `--json` printed: laws broken there do not count as broken now.
    store
        Keep every finished report in this file, and skip finished targets next time.
    training
        Watch this function, file.py:run, which trains a few steps (`qk laws training` lists the
        laws).
    resume
        A function, file.py:resume, that trains as the one of --training does, but stops on the way,
        saves, loads and goes on.
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
    """List the laws, or show some in full: what must hold, why it matters, how it is tried.

    Parameters
    ----------
    name
        Show this law in full, or all whose names begin so, as in `qk laws causality`.
    """
    with _status("loading the laws"):
        from querykey.laws import LAWS, TRAINING_LAWS, described, terminal_table
    if name:
        _say(described(name))
    else:
        _print(terminal_table(LAWS), terminal_table(TRAINING_LAWS))
        _say("`qk laws NAME` also shows why it matters and how it is tried.")
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
        A folder with config.json and safetensors. Its tokenizer.json reads the prompt; without one,
        tokens are bytes.
    prompt
        The text to continue.
    tokens
        Stop after this many new tokens.
    temperature
        Divide the scores by this before a token is drawn. Without it, top-k and top-p, the
        likeliest token is taken.
    top_k
        Draw among this many of the likeliest tokens.
    top_p
        Draw among the fewest tokens that together have this probability.
    seed
        Draw the same tokens as another call with this seed.
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
    """Train a model; the same command continues a run that was stopped.

    To train on several processes: `torchrun --nproc-per-node 2 --no-python qk train ...`.

    Parameters
    ----------
    config
        A TOML file, or the name of a recipe; without it, every field has its default.
    list
        List the recipes, objectives, data sets and models, and the flag of every field.
    check
        Only train the first four steps, and try the laws of training (`qk laws training`) on them.
        Exit code 0: no law is broken; 1: a law is broken; 3: the run failed.
    fields
        Any field of the configuration, as in `--steps 500` or `--optimizer-rate 1e-3`.
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
    if result is not None:
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
        Run all experiments, and write the verdicts of all claims: claims.md and claims.json.
    quick
        Measure less: seconds for each experiment. A claim that this cannot decide stays open.
    again
        Measure again even where a measurement by the same code is stored.
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

    The run need not have ended.

    Parameters
    ----------
    run
        The folder that `qk train` wrote.
    html
        Write the page to this file. [default: report.html in that folder]
    """
    with _status("reading the run"):
        from querykey.train import write_report

        file = write_report(run, html)
    _say(f"{file}")
    return 0


@app.command
def demo() -> int:
    """Show in a few seconds what querykey does: a broken law, a model by name, and its cost."""
    _show_a_leak()
    _say("A target is a model that you name. These are the ways to name one:")
    _print(_ways_to_name_a_target())
    name = "hf:gpt2" if _has("transformers") else "decoder"
    _say(f"One of them, built without any download and described (`qk targets {name}`):\n")
    _describe(name)
    _say(f"What it costs, as a formula; nothing was computed (`qk cost {name}`):\n")
    _cost_in_short(name)
    _say("Next: `qk check YOUR_FILE.py:YOUR_FACTORY`, `qk train --list`, `qk lab`, `qk --help`.")
    return 0


def _show_a_leak() -> None:
    from querykey.laws import LEAK, explained, leaky_model

    _say("A small language model. In one of its three layers the mask is off by one:\n")
    _say("".join(f"    {line}\n" for line in LEAK.strip().splitlines()))
    with _status("checking"):
        from querykey.laws import check as check_model

        report = check_model(leaky_model())
    _say("`qk check` is not told so. It changes what must not matter, such as later tokens:\n")
    rows = [f for f in report.laws if f.verdict != "not-applicable"]
    from querykey.show import table

    _print(table(("law", "verdict", "module"), [(f.law, f.verdict, f.module or "") for f in rows]))
    _say(explained(report.law("causality.perturb")) + "\n")


def _ways_to_name_a_target():
    from querykey.show import table
    from querykey.targets import WAYS

    return table(("TARGET", "what it is"), WAYS)


def _presets():
    from querykey.show import table
    from querykey.targets import MODEL_PRESETS, TORCH_PRESETS

    return table(("preset", "what it builds"), (TORCH_PRESETS | MODEL_PRESETS).items())


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
    try:
        print(f"qk: {visible(sentence)}", file=sys.stderr, flush=True)
    except OSError:  # nobody can read it, and the exit code still says that something was wrong
        sys.stderr = None
    return 2


def _sentence(words: str) -> str:
    words = " ".join(words.split())
    return words if words.endswith((".", "?", "!")) else f"{words}."


def _has(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None
