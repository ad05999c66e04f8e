"""Five lines that show a breach by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from querykey.laws.runner import Specimen
from querykey.laws.trial import Cells, Run, Trial, conduct
from querykey.laws.understanding.copies import Setting
from querykey.targets import PRESETS


def reproduction(specimen: Specimen, law: str, trial: Trial | None) -> str:
    """Source code that shows the breach; `model` is yours where no target's name is known."""
    if trial is None or not _plain(specimen, trial):
        return _by_law(specimen, law)
    outcome = conduct(specimen, trial)
    if not outcome.deviation > specimen.threshold:
        return _by_law(specimen, law)  # only a derivative shows it
    row = outcome.where["sample"]
    width = trial.second.setting.weights
    how = "randomised" if width == "random" else "duplicate"
    lines = [
        "import torch, querykey as qk",
        f"model = qk.laws.{how}({_model(specimen)}){_mode(trial.setting)}",
        f"a, b = {_inputs(specimen, trial.first)}, {_inputs(specimen, trial.second)}",
        f"with torch.no_grad(), qk.laws.lifted(): x, y = "
        f"({_call(specimen, trial)} for given in (a, b))",
        f"print((x{_index(trial.keep, 0, row)} - y{_index(trial.keep, 1, row)}).abs().max())"
        "  # 0 if lawful",
    ]
    return "\n".join(lines)


def _plain(specimen: Specimen, trial: Trial) -> bool:
    """Whether both runs are single calls on ids that can be written down."""
    setting = trial.setting
    written = all(each.kind in ("tokens", "mask", "start") for each in specimen.anatomy.inputs)
    single = trial.first.chunks is None and trial.second.chunks is None
    usual = not (setting.embeds or setting.attention or setting.bare or setting.dropout)
    slot = trial.first.slot or specimen.anatomy.slot
    batch_first = slot.flat or slot.batch == 0
    direct = specimen.bench.subject.forward is specimen.bench.model
    return written and single and usual and batch_first and direct and specimen.bench.wide


def _by_law(specimen: Specimen, law: str) -> str:
    """The law itself is the shortest way to calls that cannot be written down."""
    return "\n".join(
        [
            "import querykey as qk",
            f"report = qk.check({_target(specimen) or 'model'}, laws=[{law!r}], "
            f"seed={specimen.bench.seed})",
            "print(report)",
        ]
    )


def _target(specimen: Specimen) -> str:
    name = specimen.bench.subject.name
    return repr(name) if ":" in name or name in PRESETS or Path(name).is_dir() else ""


def _model(specimen: Specimen) -> str:
    target = _target(specimen)
    return f"qk.targets.build({target}).model" if target else "model"


def _mode(setting: Setting) -> str:
    return ".train()" if setting.train else ""


def _inputs(specimen: Specimen, run: Run) -> str:
    words = []
    for name, value in specimen.complete(run).items():
        if isinstance(value, torch.Tensor):
            words.append(f"{name}=torch.tensor({value.tolist()})")
        else:
            words.append(f"{name}={value!r}")
    return f"dict({', '.join(words)})"


def _call(specimen: Specimen, trial: Trial) -> str:
    slot = trial.first.slot or specimen.anatomy.slot
    path = "".join(f"[{part!r}]" for part in slot.path)
    name = specimen.anatomy.main.name
    shape = f".unflatten(0, (len(given[{name!r}]), -1))" if slot.flat else ""
    move = f".movedim({slot.seq}, 1)" if slot.seq not in (None, 1) else ""
    return f"model(**given){path}{shape}{move}"


def _index(keep: tuple[Cells, Cells], side: int, row: int) -> str:
    """The cells of the row that deviates most, on one side of the comparison."""
    picked = [n for n, r in enumerate(keep[0].rows) if r == row]
    row = keep[side].rows[picked[0]]
    columns = keep[side].columns
    if columns is None:
        return f"[{row}]"
    chosen: list[Any] = [columns[n] for n in picked]
    whole = chosen == list(range(chosen[0], chosen[-1] + 1))
    return f"[{row}, {chosen[0]}:{chosen[-1] + 1}]" if whole else f"[{row}, {chosen}]"
