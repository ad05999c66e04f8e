"""The command `qk check --training`: a function that trains is run and watched."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from querykey.laws.running.command import Outputs, accepted, answer
from querykey.laws.training.check_training import check_training
from querykey.targets import function_at


def run_training_command(
    training: str,
    resume: str | None,
    outputs: Outputs,
    baseline: Path | None,
    aside: AbstractContextManager[None],
) -> int:
    """Watch the function at `file.py:run`, print and write what was found; return the exit code.

    What the function prints goes where `aside` sends it.
    """
    known = accepted(outputs, baseline)
    with aside:
        run = function_at(training)
        report = check_training(run, resume=None if resume is None else function_at(resume))
    return answer([replace(report, target=training)], known, outputs)
