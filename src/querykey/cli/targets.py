"""The verb `qk targets`: the ways to name a model, and what a name stands for."""

from __future__ import annotations

from querykey.cli.output import display, prints_aside, status


def targets(*names: str) -> int:
    """List the ways to name a TARGET and our presets, or build targets and describe them.

    Parameters
    ----------
    names
        `file.py:factory`, `package.module:factory`, `hf:NAME[:causal|masked|seq2seq]`, a folder
        with config.json and safetensors, or a preset.
    """
    if not names:
        display(ways_to_name_a_target(), _presets())
        return 0
    for name in names:
        describe_target(name)
    return 0


def ways_to_name_a_target():
    """Return the table of the ways to name a target."""
    from querykey.show import table
    from querykey.targets import WAYS

    return table(("TARGET", "what it is"), WAYS)


def _presets():
    from querykey.show import table
    from querykey.targets import MODEL_PRESETS, TORCH_PRESETS

    return table(("preset", "what it builds"), (TORCH_PRESETS | MODEL_PRESETS).items())


def describe_target(name: str) -> None:
    """Build a target and print what it is."""
    with status(f"building {name}"), prints_aside():
        from querykey.targets import build, describe

        parts = describe(build(name))
    display(*parts)
