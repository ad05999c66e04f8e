"""The verb `qk lab`: the documents' claims, measured."""

from __future__ import annotations

from pathlib import Path

from querykey.cli.output import display, say, status


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
    with status("loading the experiments"):
        from querykey.lab import EXPERIMENTS, list_experiments, run_experiments, write_ledger
    chosen = tuple(EXPERIMENTS) if all else names
    if not chosen:
        display(list_experiments())
        return 0
    with status("measuring") as spinner:
        depth = "quick" if quick else "full"
        for line in run_experiments(chosen, depth, out, again, spinner.update):
            say(line)
    if all:
        display(write_ledger(out))
    return 0
