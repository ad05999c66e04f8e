"""Five lines of code with which a user sees a breach without the rest of querykey's laws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from querykey.laws.run import Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Cells, Trial, conduct
from querykey.targets import PRESETS


def reproduction(runner: Runner, law: str, trial: Trial | None) -> str:
    """Return source code that shows the breach; `model` is the user's where no target is named."""
    if trial is None or not _plain(runner, trial):
        return _by_law(runner, law)
    outcome = conduct(runner, trial)
    if not outcome.deviation > runner.facts.threshold:
        return _by_law(runner, law)  # only a derivative shows it
    row = outcome.evidence.where["sample"]
    width = trial.second.setting.weights
    how = "randomised" if width == "random" else "duplicate"
    lines = [
        "import torch, querykey as qk",
        f"model = qk.laws.{how}({_model(runner)}){_mode(trial.setting)}",
        f"a, b = {_inputs(runner, trial.first)}, {_inputs(runner, trial.second)}",
        f"with torch.no_grad(), qk.laws.lifted(): x, y = "
        f"({_call(runner, trial)} for given in (a, b))",
        f"print((x{_index(trial.keep, 0, row)} - y{_index(trial.keep, 1, row)}).abs().max())"
        "  # 0 if lawful",
    ]
    return "\n".join(lines)


def _plain(runner: Runner, trial: Trial) -> bool:
    """Return whether both runs are single calls on ids that can be written down."""
    setting = trial.setting
    written = all(entry.kind in ("tokens", "mask", "start") for entry in runner.signature.inputs)
    single = trial.first.chunks is None and trial.second.chunks is None
    special = setting.conditions.bare or setting.conditions.dropout
    usual = not (setting.embeds or setting.attention or special)
    slot = trial.first.slot or runner.signature.slot
    batch_first = slot.flat or slot.batch == 0
    direct = runner.subject.forward is runner.copies.model
    return written and single and usual and batch_first and direct and runner.facts.rounding.wide


def _by_law(runner: Runner, law: str) -> str:
    """Return a check of this law alone, for calls that cannot be written down."""
    return "\n".join(
        [
            "import querykey as qk",
            f"report = qk.check({_target(runner) or 'model'}, laws=[{law!r}], "
            f"seed={runner.copies.recipe.seed})",
            "print(report)",
        ]
    )


def _target(runner: Runner) -> str:
    name = runner.subject.name
    return repr(name) if ":" in name or name in PRESETS or Path(name).is_dir() else ""


def _model(runner: Runner) -> str:
    target = _target(runner)
    return f"qk.targets.build({target}).model" if target else "model"


def _mode(setting: Setting) -> str:
    return ".train()" if setting.train else ""


def _inputs(runner: Runner, run: Run) -> str:
    """Return the source code of a run's inputs."""
    words = []
    for name, value in runner.complete(run).items():
        if isinstance(value, torch.Tensor):
            words.append(f"{name}=torch.tensor({value.tolist()})")
        else:
            words.append(f"{name}={value!r}")
    return f"dict({', '.join(words)})"


def _call(runner: Runner, trial: Trial) -> str:
    """Return the source code that calls the model and takes its answer."""
    slot = trial.first.slot or runner.signature.slot
    path = "".join(f"[{part!r}]" for part in slot.path)
    name = runner.signature.main.name
    shape = f".unflatten(0, (len(given[{name!r}]), -1))" if slot.flat else ""
    move = f".movedim({slot.seq}, 1)" if slot.seq not in (None, 1) else ""
    return f"model(**given){path}{shape}{move}"


def _index(keep: tuple[Cells, Cells], side: int, row: int) -> str:
    """Return the index of the row that deviates most, on one side of the comparison."""
    picked = [n for n, r in enumerate(keep[0].rows) if r == row]
    row = keep[side].rows[picked[0]]
    columns = keep[side].columns
    if columns is None:
        return f"[{row}]"
    chosen: list[Any] = [columns[n] for n in picked]
    whole = chosen == list(range(chosen[0], chosen[-1] + 1))
    return f"[{row}, {chosen[0]}:{chosen[-1] + 1}]" if whole else f"[{row}, {chosen}]"
