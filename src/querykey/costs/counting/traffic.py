"""The bytes that every operation of a pass reads and writes, as if no two were fused.

An operation reads every operand once and writes every result once, at the width of its dtype. Views
move nothing, an axis along which a tensor is only repeated is read once, and what picks rows reads
the rows that it picks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from querykey.costs.counting.operations import Operation, Shape
from querykey.costs.inputs import leaves
from querykey.costs.private import schema_of, size_of, storage_key

Piece = tuple[Shape, int]  # the elements of a tensor that memory holds, and bytes of each

# Memory that is only asked for, and what reads or changes no element.
_NOTHING = """
    empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize_ set_
    _resize_output_ is_same_size size stride numel sym_size sym_stride sym_numel
    sym_storage_offset sym_is_contiguous item _local_scalar_dense _assert_async
    _functional_assert_async _assert_scalar as_strided_ detach_ squeeze_ t_ transpose_ unsqueeze_
    swapaxes_ swapdims_ rename_ requires_grad_ lift lift_fresh
"""
# What writes a tensor in place without a look at what was in it.
_OVERWRITING = """
    copy_ fill_ zero_ normal_ uniform_ bernoulli_ random_ exponential_ geometric_ cauchy_
    log_normal_
"""
# What makes a tensor like another one reads nothing of it.
_MAKING = """
    zeros_like ones_like full_like rand_like randn_like randint_like new_zeros new_ones new_full
"""
# What picks from its first operand reads as much of it as comes out.
_PICKING = """
    embedding index _unsafe_index index_select gather take take_along_dim masked_select
"""


ASKED = {"aten.detach", "aten.alias"}  # views that autograd and a pass without values make


def _named(names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names.split())


NOTHING, OVERWRITING = _named(_NOTHING), _named(_OVERWRITING)
MAKING, PICKING = _named(_MAKING), _named(_PICKING)
# What puts rows into its first operand, in place, touches as much of it as the last one holds.
PUTTING = {"aten.index_put_", "aten.index_copy_", "aten.scatter_", "aten.masked_scatter_"}
ADDING = {"aten.index_add_", "aten.scatter_add_", "aten.scatter_reduce_"}


@dataclass(frozen=True)
class OperationCall:
    """One call of an operation: what it reads and writes, and the dtype in which it computes."""

    operation: Operation
    read: tuple[Piece, ...]
    written: tuple[Piece, ...]
    dtype: str

    @property
    def bytes(self) -> Any:
        """Return the bytes that are read and written."""
        return sum((math.prod(shape) * width for shape, width in (*self.read, *self.written)), 0)


class Traffic:
    """The calls of one pass, by (call, module, phase)."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[OperationCall, str, str]] = Counter()
        self.views: Counter[str] = Counter()  # by phase: operations that only look elsewhere

    def follow(
        self, operation: Operation, func: Any, args: Any, kwargs: Any, out: Any, where: Any
    ) -> None:
        """Count one call of an operation of torch in `where`, a module and a phase."""
        nothing = operation.name in NOTHING or operation.name.startswith("prim.")
        if nothing or _is_whole_slice(operation):
            return
        operands = _tensors((args, kwargs))
        changed, only_written = _changed(operation.name, func, args, kwargs)
        known = {storage_key(tensor) for tensor in operands}
        results = [t for t in _tensors(out) if storage_key(t) not in known]
        if not results and not changed:
            self.views[where[1]] += operation.name not in ASKED
            return
        read = [t for t in operands if id(t) not in only_written]
        written = [*results, *changed]
        if operation.name in MAKING:
            read = []
        pieces = [_piece(t) for t in read], [_piece(t) for t in written]
        self._count(_picked(operation.name, *pieces), operation, (*operands, *results), where)

    def record(
        self,
        operation: Operation,
        read: Iterable[torch.Tensor],
        written: Iterable[torch.Tensor],
        where: Any,
    ) -> None:
        """Count one call of an operation that is not one of torch's own."""
        read, written = [*read], [*written]
        pieces = [_piece(t) for t in read], [_piece(t) for t in written]
        self._count(pieces, operation, (*read, *written), where)

    def copy_module(self, targets: Callable[[str], list[str]]) -> None:
        """Count for the copies of a module, which `targets` gives, what it did."""
        for (call, of, phase), times in list(self.calls.items()):
            self.calls.update({(call, to, phase): times for to in targets(of)})

    def _count(
        self,
        pieces: tuple[list[Piece], list[Piece]],
        operation: Operation,
        tensors: Iterable[torch.Tensor],
        where: tuple[str, str],
    ) -> None:
        floats = (t.dtype for t in tensors if t.dtype.is_floating_point or t.dtype.is_complex)
        dtype = str(next(floats, "")).removeprefix("torch.")
        call = OperationCall(operation, tuple(pieces[0]), tuple(pieces[1]), dtype)
        self.calls[(call, *where)] += 1


def _is_whole_slice(operation: Operation) -> bool:
    """Return whether it is the gradient of a slice of everything, such as `x[:, :]`.

    At concrete sizes torch makes no such slice; where sizes are symbols it does not see that.
    """
    return operation.name == "aten.slice_backward" and operation.args[0] == operation.outs[0]


def _tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors within a value, each once."""
    by_id = {id(leaf): leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)}
    return [*by_id.values()]


def _changed(name: str, func: Any, args: Any, kwargs: Any) -> tuple[list[torch.Tensor], set[int]]:
    """Return the operands that an operation writes, and the ids of those that it does not read."""
    changed: list[torch.Tensor] = []
    unread: set[int] = set()
    for place, argument in enumerate(schema_of(func)):
        if not argument.written:
            continue
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        tensors = _tensors(value)
        changed += tensors
        if argument.out or (place == 0 and name in OVERWRITING):
            unread |= {id(tensor) for tensor in tensors}
    return changed, unread


def _picked(name: str, read: list[Piece], written: list[Piece]) -> tuple[list[Piece], list[Piece]]:
    """Return what is read and written where an operation touches only a part of its operand."""
    if name in PICKING and read and written:
        return [(written[0][0], read[0][1]), *read[1:]], written
    if name in (*PUTTING, *ADDING) and len(read) > 1:
        shape = read[-1][0] or read[0][0]  # one number may go to any part of it
        touched = shape, read[0][1]
        return [*read[1:], *([touched] if name in ADDING else [])], [touched]
    return read, written


def _piece(tensor: torch.Tensor) -> Piece:
    """Return the elements that memory holds, without comparing symbolic sizes."""
    axes = zip(tensor.shape, tensor.stride(), strict=True)
    shape = Shape(size_of(size) for size, step in axes if size_of(step) != 0)
    return shape, tensor.element_size()
