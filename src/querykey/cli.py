"""The command `qk`: one function per verb.

Every error is one sentence on standard error. Exit codes: 0 well, 2 a bad call or a target that
cannot be built; a verb with more of them says so in its help.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version

from cyclopts import App, CycloptsError

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
        from querykey.targets import TargetError

        if not isinstance(error, TargetError):
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
        from querykey.models.prompt import Speaker
    try:
        with _status(f"loading {folder}"):
            speaker = Speaker.of(folder)
        for piece in speaker.say(prompt, tokens, temperature, top_k, top_p, seed):
            print(piece, end="", flush=True)
        print()
    except ValueError as error:
        return _refuse(" ".join(str(error).split()))
    return 0


@app.command
def demo() -> int:
    """Show in a few seconds what querykey does."""
    _say("A target is a model you can name. These are the ways to name one:")
    _print(_kinds_of_target())
    name = "hf:gpt2" if _has("transformers") else "decoder"
    _say(f"One of them, built without any download and described (`qk targets {name}`):\n")
    _describe(name)
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
