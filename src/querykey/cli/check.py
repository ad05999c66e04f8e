"""The verb `qk check`: the laws, tried on models or on a function that trains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from querykey.cli.output import prints_aside, refuse


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
    padding changes nothing, the cache changes nothing. `qk laws` lists them. With --training, the
    laws of training are tried on a function that trains a few steps, and no TARGET is named.

    Exit code 0: no law is broken, or only laws that were broken in the baseline; 1: a law is
    broken; 2: a wrong call, or nothing could be built; 3: some target failed to run.

    Parameters
    ----------
    targets
        Models by name: file.py:factory, hf:gpt2, a folder or a preset (`qk targets` lists the
        ways). `hf:*` means every Hugging Face architecture with a text head.
    law
        Try only this law, or only the laws whose names begin with this, as in `--law causality`.
        May be repeated.
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
        A file that an earlier `--json` printed. What was broken there does not count as broken.
    store
        Keep every finished report in this file, and skip finished targets next time.
    training
        Call this function, file.py:run, which trains a few steps, and try the laws of training on
        what it does (`qk laws training` lists them).
    resume
        A function, file.py:resume, that trains as many steps as the one of --training, but stops
        halfway, saves, loads and continues. Both must give the same run.
    """
    if training is not None or resume is not None:
        return _check_training(
            (*targets, *(law or ()), *input, kind, like, store), training, resume,
            (json, html, junit, sarif, repro, traceback), baseline,
        )  # fmt: skip
    if not targets:
        return refuse("name at least one TARGET; `qk targets` lists the ways to name one")
    if not timeout > 0:
        return refuse(f"--timeout is a number of seconds above 0, not {timeout:g}")
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
        return refuse("--resume goes with --training, which names the function without a stop")
    if any(other is not None for other in others):
        return refuse(
            "--training is watched by itself; "
            "leave out TARGET, --law, --kind, --like, --input and --store"
        )
    from querykey.laws import Outputs, run_training_command

    return run_training_command(training, resume, Outputs(*outputs), baseline, prints_aside())
