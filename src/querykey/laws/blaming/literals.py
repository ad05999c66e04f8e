"""Values and recorded calls as Python code; what cannot be written down is said to be so."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass, field
from typing import Any

import torch

from querykey.laws.blaming.tracing import CROPPED, KEPT, ROWS, TracedCall, UnwritableError, parts_of
from querykey.laws.private import REORDERING_METHODS
from querykey.laws.understanding.cache_edits import REORDERS
from querykey.words import a_type

SHORT = 200  # numbers: a tensor of more floats is drawn by a script, and not written into it
PLAIN = (bool, int, float, str, type(None))


TAKEN_ROWS = '''def taken_rows(cache, rows, batch, model):
    """Return a cache with these rows in this order, by a method of its own or its model's."""
    index = torch.tensor(rows)
    if not isinstance(cache, torch.Tensor):
        for name in {own}:
            if callable(getattr(cache, name, None)):
                return getattr(cache, name)(index) or cache
        for name in {methods}:
            if callable(getattr(model, name, None)):
                return getattr(model, name)(cache, index) or cache

    def taken(part):
        if isinstance(part, torch.Tensor):
            axes = [axis for axis in range(min(3, part.dim())) if part.shape[axis] == batch]
            return part.index_select(axes[0], index) if axes else part
        if isinstance(part, dict):
            return {{key: taken(value) for key, value in part.items()}}
        if isinstance(part, (list, tuple)):
            values = [taken(value) for value in part]
            return type(part)(*values) if hasattr(part, "_fields") else type(part)(values)
        if hasattr(part, "__dict__"):
            other = copy.copy(part)
            for name, value in vars(part).items():
                object.__setattr__(other, name, taken(value))
            return other
        return part

    return taken(cache)


'''
CUT_BACK = '''def cut_back(part, before, count):
    """Return a cache without its last `count` tokens, which a copy taken before does not hold."""
    if isinstance(part, torch.Tensor) and isinstance(before, torch.Tensor):
        for axis in range(part.dim()):
            if part.shape[axis] - before.shape[axis] == count:
                return part.narrow(axis, 0, before.shape[axis]).clone()
        return part
    if isinstance(part, int) and isinstance(before, int):
        return before if part - before == count else part
    if isinstance(part, dict):
        return {key: cut_back(value, before.get(key), count) for key, value in part.items()}
    if isinstance(part, (list, tuple)):
        values = [cut_back(*pair, count) for pair in zip(part, before)]
        return type(part)(*values) if hasattr(part, "_fields") else type(part)(values)
    if hasattr(part, "__dict__"):
        other = copy.copy(part)
        for name, value in vars(part).items():
            object.__setattr__(other, name, cut_back(value, vars(before).get(name), count))
        return other
    return part


'''


@dataclass
class CodeWriter:
    """Turns values into code. `lines` define the names that the code uses."""

    lines: list[str] = field(default_factory=list)
    tensors: list[tuple[str, torch.Tensor]] = field(default_factory=list)  # that have a name
    objects: list[tuple[str, Any]] = field(default_factory=list)  # results and containers
    vectors: list[torch.Tensor] = field(default_factory=list)  # one cell per line of a table

    def calls(self, calls: list[TracedCall], prefix: str, indent: str = "") -> tuple[str, str]:
        """Return code that makes these calls on `model`, and the name of the last result.

        Calls whose results nobody reads and that are no call of the model are left in: they may
        change it.
        """
        code = []
        for place, call in enumerate(calls):
            name = prefix if place == len(calls) - 1 else f"{prefix}_{place}"
            arguments = [self.value(value) for value in call.args]
            arguments += [f"{key}={self.value(v, key)}" for key, v in call.kwargs.items()]
            method = f".{call.method}" if call.method else ""
            if call.method == ROWS:
                self._define(TAKEN_ROWS.format(own=REORDERS, methods=REORDERING_METHODS))
                code.append(f"{indent}{name} = taken_rows({', '.join(arguments)}, model)")
            elif call.method == KEPT:
                code.append(f"{indent}{name} = copy.deepcopy({arguments[0]})")
            elif call.method == CROPPED:
                self._define(CUT_BACK)
                code.append(f"{indent}{name} = cut_back({', '.join(arguments)})")
            elif call.on is not None:
                own = self.value(call.on)
                code.append(f"{indent}{name} = {own}{method}({', '.join(arguments)}) or {own}")
            else:
                code.append(f"{indent}{name} = model{method}({', '.join(arguments)})")
            self.objects.append((name, call.result))
        return "\n".join(code), prefix

    def _define(self, text: str) -> None:
        """Define a function that the code calls, once."""
        if text not in self.lines:
            self.lines.insert(0, text)

    def value(self, value: Any, name: str = "value") -> str:
        """Return the code of a value; a tensor gets a name of its own."""
        if isinstance(value, float) and not math.isfinite(value):
            return f"float('{value}')"
        if isinstance(value, (*PLAIN, torch.dtype, torch.device)):
            return repr(value)
        for holder, held in reversed(self.objects):
            for part, path in parts_of(held):
                if part is value:
                    return f"{holder}{path}"
        if isinstance(value, torch.Tensor):
            return self.tensor(value, name)
        if type(value) in (list, dict) and not value:
            holder = self._free(name if name.isidentifier() else "held")
            self.lines.append(f"{holder} = {value!r}")
            self.objects.append((holder, value))
            return holder
        if type(value) is tuple:
            inner = [self.value(part, name) for part in value]
            return f"({', '.join(inner)}{',' * (len(inner) == 1)})"
        if type(value) is list:
            return f"[{', '.join(self.value(part, name) for part in value)}]"
        if type(value) is dict:
            inner = [f"{key!r}: {self.value(part, str(key))}" for key, part in value.items()]
            return f"{{{', '.join(inner)}}}"
        raise UnwritableError(f"{a_type(value)} cannot be written down")

    def tensor(self, tensor: torch.Tensor, name: str) -> str:
        """Return the name of a tensor; equal tensors share one."""
        tensor = tensor.detach().cpu()
        for known, other in self.tensors:
            if other.dtype == tensor.dtype and torch.equal(other, tensor):
                return known
        name = self._free(name)
        self.lines.append(f"{name} = {self._literal(tensor)}")
        self.tensors.append((name, tensor))
        return name

    def _literal(self, tensor: torch.Tensor) -> str:
        """Return code that makes a tensor, or one with other random numbers and equal parts."""
        if tensor.is_complex():
            raise UnwritableError("complex numbers are not written down")
        if not tensor.is_floating_point():
            kind = str(tensor.dtype)
            if tensor.dim() and tensor.numel() > 1 and bool((tensor == tensor.flatten()[0]).all()):
                shape, value = tuple(tensor.shape), tensor.flatten()[0].item()
                return f"torch.full({shape}, {value}, dtype={kind})"
            typed = "" if tensor.dtype in (torch.int64, torch.bool) else f", dtype={kind}"
            return f"torch.tensor({_folded(tensor.tolist())}{typed})"
        if tensor.numel() <= SHORT or len(tensor.unique()) <= 4:
            values = _folded(tensor.tolist()).replace("inf", "math.inf").replace("nan", "math.nan")
            return f"torch.tensor({values}, dtype=DTYPE)"
        return self._drawn(tensor)

    def _drawn(self, tensor: torch.Tensor) -> str:
        """Return code that looks every cell up in a table of random vectors, drawn by a seed."""
        axes = {2: 2, 4: 1}.get(tensor.dim(), min(2, tensor.dim()))
        cells = tensor.flatten(0, axes - 1)
        shape = cells.shape[1:]
        if any(v.shape != shape for v in self.vectors[:1]):
            raise UnwritableError("features of several widths are not written down")
        rows = [self._line(cell) for cell in cells]
        table = torch.tensor(rows).reshape(tensor.shape[:axes]).tolist()
        return f"vectors[torch.tensor({_folded(table)})]"

    def _line(self, cell: torch.Tensor) -> int:
        for place, other in enumerate(self.vectors):
            if torch.equal(cell, other):
                return place
        self.vectors.append(cell)
        return len(self.vectors) - 1

    def definitions(self) -> str:
        """Return code that defines every name which the code of calls uses."""
        lines = list(self.lines)
        if self.vectors:
            shape = (len(self.vectors), *self.vectors[0].shape)
            seeded = "generator=torch.Generator().manual_seed(1)"
            lines.insert(0, f"vectors = torch.randn({shape}, {seeded}, dtype=torch.float64)")
            lines.insert(1, "vectors = vectors.to(DTYPE)")
        return "\n".join(lines)

    def _free(self, name: str) -> str:
        """Return a name like this one that means nothing else yet."""
        taken = {known for known, _ in self.tensors} | {known for known, _ in self.objects}
        taken |= {"model", "first", "second", "vectors", "x", "y", "build", "make", "torch", "sys"}
        free, number = name, 2
        while free in taken:
            free, number = f"{name}_{number}", number + 1
        return free


def _folded(values: Any) -> str:
    """Return nested lists of numbers in lines of at most 100 columns."""
    text = repr(values)
    if len(text) <= 80:
        return text
    return "\n".join(textwrap.wrap(text, 96, break_long_words=False)).replace("\n", "\n    ")
