"""Five lines that show a breach by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from querykey.laws.bench import Setting
from querykey.laws.specimen import Specimen
from querykey.laws.trial import Cells, Run, Trial, conduct
from querykey.targets import PRESETS


def reproduction(specimen: Specimen, trial: Trial) -> str | None:
    """Source code that prints the deviation; `model` is yours where no target's name is known."""
    if not conduct(specimen, trial).deviation > specimen.threshold:
        return None  # only a derivative shows it
    if not _plain(specimen, trial):
        return _by_law(specimen)
    width = trial.second.setting.weights
    how = "randomised" if width == "random" else "duplicate"
    lines = [
        "import torch, querykey as qk",
        f"model = qk.laws.{how}({_model(specimen)}){_mode(trial.setting)}",
        f"a, b = {_inputs(specimen, trial.first)}, {_inputs(specimen, trial.second)}",
        f"with torch.no_grad(), qk.laws.lifted(): x, y = "
        f"({_call(specimen, trial)} for given in (a, b))",
        f"print((x{_index(trial.keep[0])} - y{_index(trial.keep[1])}).abs().max())  # 0 if lawful",
    ]
    return "\n".join(lines)


def _plain(specimen: Specimen, trial: Trial) -> bool:
    """Whether both runs are single calls on ids that can be written down."""
    setting = trial.setting
    written = all(each.kind in ("tokens", "mask", "start") for each in specimen.anatomy.inputs)
    single = trial.first.chunks is None and trial.second.chunks is None
    usual = not (setting.embeds or setting.attention or setting.bare or setting.dropout)
    batch_first = specimen.anatomy.slot.flat or (specimen.anatomy.slot.batch == 0)
    direct = specimen.bench.subject.forward is specimen.bench.model
    return written and single and usual and batch_first and direct and specimen.bench.wide


def _by_law(specimen: Specimen) -> str:
    """The law itself is the shortest way to calls that cannot be written down."""
    return "\n".join(
        [
            "import querykey as qk",
            f"report = qk.check({_target(specimen) or 'model'}, seed={specimen.bench.seed})",
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
    slot = specimen.anatomy.slot
    path = "".join(f"[{part!r}]" for part in slot.path)
    name = specimen.anatomy.main.name
    shape = f".unflatten(0, (len(given[{name!r}]), -1))" if slot.flat else ""
    move = f".movedim({slot.seq}, 1)" if slot.seq not in (None, 1) else ""
    return f"model(**given){path}{shape}{move}"


def _index(picked: Cells) -> str:
    """Only the first row of the compared cells where there are several: enough to see it."""
    row = picked.rows[0]
    if picked.columns is None:
        return f"[{row}]"
    columns: list[Any] = [c for r, c in zip(picked.rows, picked.columns, strict=True) if r == row]
    whole = columns == list(range(columns[0], columns[-1] + 1))
    return f"[{row}, {columns[0]}:{columns[-1] + 1}]" if whole else f"[{row}, {columns}]"
