"""A traced run as code: the model, its calls, and the cells of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from querykey.laws.blaming.literals import CodeWriter, UnwritableError
from querykey.laws.blaming.tracing import TracedRun, parts_of
from querykey.laws.run import Run
from querykey.laws.runner import Runner
from querykey.laws.trial import Cells
from querykey.laws.understanding.outputs import answers, follow

COMPARE = """
same = (x == y) | (x.isnan() & y.isnan()) if x.shape == y.shape else None
size = float(x[x.isfinite()].double().pow(2).mean().sqrt()) or 1.0
difference = math.inf if same is None else float(torch.where(same, 0.0, (x - y).abs()).max()) / size
print(f"{WORDS}: {difference:.3g} of their size, where rounding stays below {LIMIT}")
sys.exit(int(not difference <= LIMIT))
"""


def run_code(runner: Runner, writer: CodeWriter, traced: TracedRun, name: str) -> str:
    """Return the code of one run: a model, its mode, and its calls."""
    setting = traced.run.setting
    lines = ["model = build()"]
    if setting.conditions.reseeded:
        lines.append("torch.manual_seed(1)  # other random numbers")
    wanted = setting.attention
    switched = switch_code(runner, wanted) if wanted else ""
    lines += [switched] if switched else []
    math = wanted == "math" and not switched
    if wanted and "flex" in wanted:
        lines.append('torch.compiler.set_stance("force_eager")  # compiling takes half a minute')
    if math:
        lines.append("torch.backends.mha.set_fastpath_enabled(False)")
        kernel = "torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)"
        lines.append(f"with torch.no_grad(), {kernel}:")
    else:
        lines.append("with torch.no_grad():")
    lines.append(writer.calls(traced.calls, name, "    ")[0])
    if math:
        lines.append("torch.backends.mha.set_fastpath_enabled(True)")
        lines.insert(0, "import torch.nn.attention")
    return "\n".join(lines) + "\n"


def switch_code(runner: Runner, wanted: str) -> str | None:
    """Return the code that makes `model` compute attention so; None where it has no such switch."""
    model: Any = runner.copies.model
    if any(wanted in getattr(m, "backends", ()) for m in model.modules()):
        return (
            "for module in model.modules():\n"
            f'    if {wanted!r} in getattr(module, "backends", ()):\n'
            f"        module.backend = {wanted!r}"
        )
    if "=" in wanted:
        attribute, value = wanted.split("=")
        return (
            "for module in model.modules():\n"
            f"    if {attribute!r} in vars(module):\n"
            f"        module.{attribute} = {value}"
        )
    if wanted == "math":
        return None
    return f"model.set_attn_implementation({wanted!r})"


def answer_code(
    runner: Runner, writer: CodeWriter, traced: TracedRun, run: Run, keep: Cells | None
) -> str:
    """Return the code of the answer of a run: where it is in the outputs, and its cells."""
    parts = [place_code(runner, writer, output, run) for output in traced.taken]
    if run.chunks is None:
        parts = parts[-1:]
    code = parts[0] if len(parts) == 1 else f"torch.cat([{', '.join(parts)}], 1)"
    return code if keep is None else cells_code(code, keep, traced.answer)


def place_code(runner: Runner, writer: CodeWriter, output: Any, run: Run) -> str:
    """Return the code of the answer in one output, as (batch, positions, ...)."""
    slot = run.slot or runner.signature.slot
    tensor = follow(output, slot.path)
    if not isinstance(tensor, torch.Tensor):
        tensor = next(part for _, part in answers(tensor))
    code = _found(writer, tensor)
    if slot.flat:
        return f"{code}.unflatten(0, ({runner.signature.batch_of(run.inputs)}, -1))"
    axes = [axis for axis in (slot.batch, slot.seq) if axis is not None]
    if axes != list(range(len(axes))):
        code += f".movedim({tuple(axes)}, {tuple(range(len(axes)))})"
    return code if slot.batch is not None else f"{code}.unsqueeze(0)"


def _found(writer: CodeWriter, tensor: torch.Tensor) -> str:
    """Return the code by which a result of a call is read."""
    for holder, held in reversed(writer.objects):
        for part, path in parts_of(held):
            if part is tensor:
                return f"{holder}{path}"
    raise UnwritableError("the answer is no part of what a call returned")


def cells_code(code: str, keep: Cells, answer: torch.Tensor) -> str:
    """Return the code that takes these cells of an answer."""
    if keep.columns is None:
        rows = list(keep.rows)
        return code if rows == list(range(len(answer))) else f"{code}[{rows}]"
    batch, length = answer.shape[:2]
    if len(keep) == batch * length and _in_order(keep, length):
        return f"{code}.flatten(0, 1)"
    pieces: list[tuple[int, list[int]]] = []
    for row, column in zip(keep.rows, keep.columns, strict=True):
        if not pieces or pieces[-1][0] != row:
            pieces.append((row, []))
        pieces[-1][1].append(column)
    picked = [f"answer[{row}, {_range(columns)}]" for row, columns in pieces]
    joined = picked[0] if len(picked) == 1 else f"torch.cat([{', '.join(picked)}])"
    return f"(lambda answer: {joined})({code})"


def _in_order(keep: Cells, length: int) -> bool:
    cells = list(zip(keep.rows, keep.columns or (), strict=True))
    return cells == [divmod(place, length) for place in range(len(cells))]


def _range(columns: Sequence[int]) -> str:
    whole = list(columns) == list(range(columns[0], columns[-1] + 1))
    return f"{columns[0]}:{columns[-1] + 1}" if whole else str(list(columns))


def quoted(words: str) -> str:
    """Return words without what would end a text in the code, or be read as a part of it."""
    return words.replace("\\", "/").replace('"', "'").replace("{", "(").replace("}", ")")
