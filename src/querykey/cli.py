"""The command `qk`: one function per verb.

Every error is one sentence on standard error. Exit codes: 0 well, 2 a bad call or a target that
cannot be built; a verb with more of them says so in its help.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter

app = App(
    name="qk",
    help="An attention workbench: what a mechanism is, what it costs, whether it is right.",
    version=lambda: f"querykey {version('querykey')}",
)


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    sys.exit(run(sys.argv[1:] if words is None else words))


def run(words: Sequence[str]) -> int:
    """Run the command line and return its exit code."""
    try:
        return app(words, exit_on_error=False, print_error=False, result_action="return_value") or 0
    except CycloptsError as error:
        return _refuse(f"{_sentence(str(error))} See `qk --help`.")
    except ValueError as error:
        # Only the errors that we word ourselves; anything else is a defect and shows its traceback.
        if not isinstance(error, _worded()):
            raise
        return _refuse(str(error))
    except BrokenPipeError:
        # The reader of `qk ... | head` has left; Python would complain again while closing.
        sys.stdout = None
        return 0


@app.command
def targets(*names: str) -> int:
    """Say what can be named as a TARGET, or build the named ones and describe them.

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
def cost(
    target: str,
    /,
    *,
    input: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    at: str = "",
    attention: str = "flash",
    json: Annotated[bool, Parameter(negative="")] = False,
    html: str = "",
) -> int:
    """Say what a target costs, as exact formulas in named sizes; nothing is computed.

    Parameters
    ----------
    target
        What `qk targets` lists: `file.py:factory`, `hf:NAME`, a folder, a preset.
    input
        What goes in, where the target does not tell: ids=tokens(batch,seq), x=array(n,64),
        images(batch,3,32,32). Once per input.
    at
        Sizes to put in, as batch=8,seq=1024.
    attention
        How scaled_dot_product_attention runs: flash (fused) or math.
    json
        Print JSON.
    html
        Write one HTML page to this file.
    """
    with _status(f"deriving the cost of {target}"):
        from querykey.costs.command import cost_of_target, write_page
        from querykey.costs.render import tables

        report = cost_of_target(target, input, at, attention)
    if html:
        write_page(report, target, html)
    if json:
        print(report.to_json())
    elif not html:
        _print(*tables(report))
    return 0


@app.command
def demo() -> int:
    """Show in a few seconds what querykey does."""
    _say("A target is a model you can name. These are the ways to name one:")
    _print(_kinds_of_target())
    name = "hf:gpt2" if _has("transformers") else "decoder"
    _say(f"One of them, built without any download and described (`qk targets {name}`):\n")
    _describe(name)
    _say(f"What it costs, as a formula; nothing was computed (`qk cost {name}`):\n")
    _cost_in_short(name)
    _say("Next: `qk targets YOUR_FILE.py:YOUR_FACTORY`, and `qk --help`.")
    return 0


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
    with _status(f"building {name}"):
        from querykey.targets import build
        from querykey.targets.describe import describe

        parts = describe(build(name))
    _print(*parts)


def _cost_in_short(name: str) -> None:
    with _status(f"deriving the cost of {name}"):
        from querykey.costs.command import cost_of_target
        from querykey.costs.render import totals
        from querykey.show import table

        report = cost_of_target(name)
    _print(table(("cost", f"in {', '.join(report.symbols)}"), totals(report)[:6]))
    _say(f"It grows as {report.order('flops.forward')}.\n")


def _worded() -> tuple[type[ValueError], ...]:
    """The errors whose text is written for the user."""
    from querykey.costs import CostError
    from querykey.targets import TargetError

    return TargetError, CostError


@contextmanager
def _status(words: str) -> Iterator[None]:
    """Show on a terminal that something is under way; standard output stays clean."""
    from rich.console import Console

    with Console(stderr=True).status(words):
        yield


def _print(*parts) -> None:
    from rich.console import Console

    for part in parts:
        Console().print(part)


def _say(words: str) -> None:
    print(words)


def _refuse(sentence: str) -> int:
    print(f"qk: {sentence}", file=sys.stderr)
    return 2


def _sentence(words: str) -> str:
    words = " ".join(words.split())
    return words if words.endswith((".", "?", "!")) else f"{words}."


def _has(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None
