"""The verb `qk report`: a page about a training run."""

from __future__ import annotations

from querykey.cli.output import say, status


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
    with status("reading the run"):
        from querykey.train import write_report

        file = write_report(run, html)
    say(f"{file}")
    return 0
