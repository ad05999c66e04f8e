"""The verb `qk train`: a model trained, or its run continued."""

from __future__ import annotations

from querykey.cli.output import display, say, status


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
    with status("loading"):
        from querykey.train import check_command, listing, summary, train_command
    if list:
        display(*listing())
        return 0
    if check:
        report = check_command(config, fields)
        display(*report.paragraphs())
        return 1 if report.violations else 3 if report.failed else 0
    result = train_command(config, fields)
    if result is not None:
        say(summary(result))
    return 0
