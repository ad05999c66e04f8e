"""A value that remembers which primitive made it, and the backward walk.

A Tensor holds an array and its edges: for each Tensor it was made from, the function that turns its
own gradient into that one's. One clock stamps everything. What is made later has a later stamp, so
the walk goes from the latest to the earliest; and a value changed in place takes a new stamp, later
than its readers', which is how the walk knows that their derivatives can no longer be trusted.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable
from operator import attrgetter
from typing import Any, cast

import numpy as np

from querykey.ag import errors
from querykey.ag.extras.aliasing import LENT, end_all_loans, lend, look
from querykey.ag.extras.slices import SMALL, Block
from querykey.ag.protocols import ArrayLike, plain_index, raw
from querykey.ag.special import MOST, ones

Edge = tuple[Any, Callable[..., Any]]

tick = itertools.count(1).__next__
new_tensor = object.__new__
# In place of the edges of a Tensor that backward has passed, and of one whose value was changed.
SPENT, CHANGED = cast("tuple[Edge, ...]", "spent"), cast("tuple[Edge, ...]", "changed")
WALKING = threading.RLock()  # a walk adds to gradients and frees graphs, which threads may share


class Tensor(ArrayLike):
    """An array, the gradient that reached it, and the edges to what it was made from.

    Floats want a gradient unless told otherwise, integers and booleans cannot have one. A leaf
    keeps its `.grad`, which adds up over backward calls until it is set to None; so does every
    Tensor with a label: a label means "show me this".
    """

    __slots__ = (
        *("_data", "op", "edges", "saved", "requires_grad", "stamp", "label", "grad"),
        *("_of", "__weakref__"),
    )
    _data: np.ndarray
    op: str  # the primitive that made it; of a leaf, nothing
    edges: tuple[Edge, ...]  # to every Tensor that was read; the walk passes constants by
    saved: tuple  # what the pulls of the edges are given besides the gradient
    requires_grad: bool
    stamp: int
    label: str | None
    grad: np.ndarray | None
    _of: Tensor | None  # what exp and sum read, so that `/` knows a softmax
    __hash__ = object.__hash__

    def __init__(self, data: Any, label: str | None = None, requires_grad: bool | None = None):
        self._data = np.array(data if isinstance(data, np.generic) else raw(data))
        real = self._data.dtype.kind == "f"
        if not real and self._data.dtype.kind not in "biu":
            raise TypeError(f"a Tensor holds real numbers or booleans, not {self._data.dtype}")
        if requires_grad and not real:
            raise errors.no_floats(label, self._data.dtype)
        self.requires_grad = real if requires_grad is None else requires_grad
        self.op, self.edges, self.saved, self.stamp = "", (), (), tick()
        self.label, self.grad, self._of = label, None, None

    @property
    def data(self) -> np.ndarray:
        """The array. It may be changed (`w.data -= step`); a graph that has read it will notice."""
        return lend(self)

    @data.setter
    def data(self, value: Any) -> None:
        if self.requires_grad and self.edges and self.edges is not SPENT:
            raise errors.computed(self)
        value = raw(value)
        if value is not self._data:  # as it is after `w.data -= step`
            value = np.array(value, dtype=self._data.dtype)
        if value.shape != self._data.shape:
            raise ValueError(
                f"{errors.name(self)} has shape {self.shape}, its new data {value.shape}"
            )
        self._data = value
        self.touch()
        LENT.pop(id(self), None)

    def touch(self) -> None:
        """Take a new stamp after a change in place; what was computed has no derivative then."""
        if self.requires_grad and self.edges and self.edges is not SPENT:
            self.edges, self._of = CHANGED, None
        self.stamp = tick()

    def detach(self) -> Tensor:
        """Return the same array as a constant, through which no gradient passes."""
        return record("detach", self._data.copy())

    def backward(self, gradient: Any = None, retain_graph: bool = False) -> None:
        """Give every leaf and every labelled Tensor behind this one its gradient.

        The walk frees the graph as it goes; `retain_graph` keeps it for another walk.
        """
        pending: dict[Tensor, Any] = {self: seed(self, gradient)}  # a pull may begin another walk
        shared: set[Tensor] = set()  # those whose pending gradient another Tensor holds too
        with WALKING:
            order, leaves = history(self)
            while order:
                node = order.pop()
                g = pending.pop(node)
                if node.label is not None:
                    keep(node, g, node in shared)
                if type(g) is Block and node.op not in SMALL:
                    g = g.dense()
                for source, pull in node.edges:
                    if not source.requires_grad:
                        continue
                    new, shape = pull(g, *node.saved), source._data.shape
                    if new.shape != shape:
                        new = fitted(new, shape)
                    old = pending.get(source)
                    if old is None:
                        pending[source] = new
                        if new is g:
                            shared.add(source)
                    elif old.base is None and source not in shared:
                        old += new
                        pending[source] = old
                    else:
                        pending[source] = old + new
                        shared.discard(source)
                if not retain_graph:
                    node.edges, node.saved, node._of = SPENT, (), None
            for node in leaves:
                keep(node, pending.pop(node), node in shared)

    def __setitem__(self, index: Any, value: Any) -> None:
        if self.requires_grad:
            raise errors.assignment(self)
        if self._data.base is not None:  # a view, through which another Tensor would change
            self._data = self._data.copy()
        self._data[plain_index(index)] = raw(value)
        self.touch()


def record(op: str, value: Any, *edges: Edge, saved: tuple = ()) -> Tensor:
    """Return `value` as the Tensor `op` made. An edge is (an input, what pulls a gradient back).

    This is how a primitive is written: see primitives.py. A pull is called with the gradient and
    what was saved; it returns a new array, the gradient itself or a view of that. It may leave
    broadcasting alone: the walk sums what was spread, and spreads what was summed.
    """
    out = new_tensor(Tensor)
    out._data = value if type(value) is np.ndarray else np.asarray(value)
    wanted = False
    try:
        for source, _ in edges:
            if source.stamp and source.requires_grad:
                wanted = True
    except AttributeError:  # not every input is a Tensor: no stamp
        edges = tuple([e for e in edges if isinstance(e[0], Tensor) or errors.lost(op, e[0])])
        wanted = any(source.requires_grad for source, _ in edges)
    if LENT:
        look([edge[0] for edge in edges])
    out.op = op
    out.edges = edges if wanted or not edges else remembered(out._data, edges)
    out.saved = saved if wanted else ()
    out.requires_grad = wanted
    out.stamp = tick()
    out.label = out.grad = out._of = None
    return out


def remembered(value: np.ndarray, edges: tuple[Edge, ...]) -> tuple[Edge, ...]:
    """Return the edges of a constant: for drawings, but no history that adds up; and of a view."""
    if any(source.edges or source._of is not None for source, _ in edges):
        return tuple([edge for edge in edges if np.may_share_memory(value, edge[0]._data)])
    return edges


def seed(end: Tensor, gradient: Any) -> np.ndarray:
    """Return the gradient a walk starts with, or say why there is none to start with."""
    if not end.requires_grad:
        raise errors.nowhere_to_go(end)
    if gradient is None:
        if end.size != 1:
            raise errors.many_numbers(end)
        return ones(end.shape, end.dtype).copy()
    gradient = np.array(raw(gradient), dtype=end.dtype)
    if gradient.shape != end.shape:
        raise ValueError(
            f"{errors.name(end)} has shape {end.shape}, the gradient given {gradient.shape}"
        )
    return gradient


def history(end: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return what a gradient of `end` reaches: what was computed, the earliest first; leaves."""
    if LENT:
        end_all_loans()
    if not end.edges:
        return [], [end]
    found, stack, leaves = {end}, [end], set()
    while stack:
        node = stack.pop()
        edges, stamp = node.edges, node.stamp
        if type(edges) is str:
            raise (errors.already_walked if edges == SPENT else errors.computed)(node)
        for source, _ in edges:
            if source.stamp > stamp:
                raise errors.changed(source, node)
            if not source.edges:
                leaves.add(source)
            elif not source.requires_grad:
                check_views(source)
            elif source not in found:
                found.add(source)
                stack.append(source)
    return sorted(found, key=attrgetter("stamp")), [x for x in leaves if x.requires_grad]


def check_views(constant: Tensor) -> None:
    """Complain where a constant shares the array of another that was changed."""
    stack = [constant]
    while stack:
        for source, _ in (reader := stack.pop()).edges:
            if np.may_share_memory(reader._data, source._data):
                if source.stamp > reader.stamp:
                    raise errors.changed(source, reader)
                stack.append(source)


def keep(node: Tensor, g: Any, shared: bool) -> None:
    """Add a finished gradient to a Tensor's own, in an array that nobody else holds."""
    g = g.dense() if type(g) is Block else g
    if node.grad is not None:
        g, shared = node.grad + g, False
    if shared or g.base is not None or type(g) is not np.ndarray or g.dtype is not node._data.dtype:
        g = np.array(g, dtype=errors.floats(node))
    node.grad = g


def fitted(g: Any, shape: tuple[int, ...]) -> Any:
    """Return `g` for an input of this shape: summed where it was spread, spread where summed."""
    extra = g.ndim - len(shape)
    if extra > 0 and type(g) is np.ndarray and g.size and g.shape[extra:] == shape:
        rows = g.reshape(-1, math.prod(shape))  # a product is the quickest way to add them
        once = (ones if len(rows) <= MOST else np.ones)(len(rows), g.dtype)
        return once.dot(rows).reshape(shape)
    g = shrink(g, shape)
    if g.shape == shape:
        return g
    if isinstance(g, Block):
        return g.spread(shape)
    full = np.empty(shape, g.dtype)
    full[...] = g
    return full


def shrink(g: Any, shape: tuple[int, ...]) -> Any:
    """Return the sum of `g` over the axes along which an input of this shape was spread."""
    extra = g.ndim - len(shape)
    if extra > 0:
        g = np.add.reduce(g, tuple(range(extra)))
    elif extra < 0:
        g = g.reshape((1,) * -extra + g.shape)
    axes = tuple([i for i, n in enumerate(shape) if n == 1 and g.shape[i] != 1])
    return np.add.reduce(g, axes, keepdims=True) if axes else g
