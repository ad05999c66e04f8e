"""A value that remembers how it was computed, and the backward walk over what it remembers.

A Tensor holds an array and its edges. There is one edge for each Tensor it was computed from, with
a function, the pull, that turns a gradient of the result into the gradient of that input (its
vector-Jacobian product). `backward` walks the edges from the latest result to the earliest.

One clock stamps every Tensor when it is made. A result has a later stamp than its inputs, which
orders the walk. A value that is changed in place takes a new stamp; it is then later than the
results that read it, and the walk refuses to use their derivatives.
"""

from __future__ import annotations

import copy
import itertools
import math
import threading
from collections.abc import Callable
from operator import attrgetter
from typing import Any, cast

import numpy as np

from querykey.ag import errors
from querykey.ag.hooks import hooks
from querykey.ag.protocols import ArrayLike, plain_index, raw
from querykey.ag.special import CACHED, ones
from querykey.errors import WrongTypeError

Edge = tuple[Any, Callable[..., Any]]

tick = itertools.count(1).__next__
new_tensor = object.__new__
# These stand in place of the edges of a Tensor that backward has passed, or that was changed.
SPENT, CHANGED = cast("tuple[Edge, ...]", "spent"), cast("tuple[Edge, ...]", "changed")
WALKING = threading.RLock()  # a walk adds to gradients and frees graphs, which threads may share
PLAIN = (np.ndarray, np.generic)


class Tensor(ArrayLike):
    """An array, the gradient that reached it, and the edges to what it was computed from.

    Floats want a gradient unless told otherwise; integers and booleans cannot have one. A leaf (a
    Tensor that nothing computed) keeps its `.grad`, which adds up over backward calls until it is
    set to None. So does every Tensor with a label: a label means "show me this".
    """

    __slots__ = (
        *("_data", "op", "edges", "saved", "requires_grad", "stamp", "label", "grad"),
        *("_operand", "__weakref__"),
    )
    _data: np.ndarray
    op: str  # the name of the primitive that computed it; empty for a leaf
    edges: tuple[Edge, ...]  # to every Tensor that was read, constants included
    saved: tuple  # what every pull is called with, after the gradient
    requires_grad: bool
    stamp: int
    label: str | None
    grad: np.ndarray | None
    _operand: Tensor | None  # what exp, and the sum of an exp, was taken of: `/` asks for it
    __hash__ = object.__hash__

    def __init__(self, data: Any, label: str | None = None, requires_grad: bool | None = None):
        errors.refuse_lost_gradients("Tensor", data)
        try:
            self._data = np.array(data if isinstance(data, np.generic) else raw(data))
        except errors.REFUSALS as error:
            raise errors.misfit("Tensor", error, ()) from None
        real = self._data.dtype.kind == "f"
        if not real and self._data.dtype.kind not in "biu":
            raise WrongTypeError(f"a Tensor holds real numbers or booleans, not {self._data.dtype}")
        if requires_grad and not real:
            raise errors.no_floats(label, self._data.dtype)
        self.requires_grad = real if requires_grad is None else requires_grad
        self.op, self.edges, self.saved, self.stamp = "", (), (), tick()
        self.label, self.grad, self._operand = label, None, None

    def backward(self, gradient: Any = None, retain_graph: bool = False) -> None:
        """Add to `.grad` of every leaf and every labelled Tensor that this one was computed from.

        The walk frees the graph as it goes; `retain_graph` keeps it for another walk.
        """
        pending: dict[Tensor, Any] = {self: seed(self, gradient)}  # a pull may begin another walk
        shared: set[Tensor] = set()  # Tensors whose pending gradient is another's too
        with WALKING:
            order, leaves = history(self)
            while order:
                node = order.pop()
                g, saved = pending.pop(node), node.saved
                if node.label is not None:
                    keep(node, g, node in shared)
                small = not isinstance(g, PLAIN)  # see `Hooks.small_gradient`
                for source, pull in node.edges:
                    if not source.requires_grad:
                        continue
                    shape = source._data.shape
                    new = g.pulled(pull, saved, shape) if small else pull(g, *saved)
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
                    node.edges, node.saved, node._operand = SPENT, (), None
            for leaf in leaves:
                keep(leaf, pending.pop(leaf), leaf in shared)

    @property
    def data(self) -> np.ndarray:
        """The array. It may be changed (`w.data -= step`); a graph that has read it will notice."""
        return hooks.watch.lend(self)

    @data.setter
    def data(self, value: Any) -> None:
        if self.in_use():
            raise errors.computed(self)
        value = raw(value)
        if value is not self._data:  # as it is after `w.data -= step`
            value = np.array(value, dtype=self._data.dtype)
        if value.shape != self._data.shape:
            raise errors.other_shape(self, "its new data", value.shape)
        self._data = value
        self.touch()
        hooks.watch.lent.pop(id(self), None)

    def touch(self) -> None:
        """Take a new stamp after a change in place; a computed Tensor then has no derivative."""
        if self.in_use():
            self.edges, self._operand = CHANGED, None
        self.stamp = tick()

    def in_use(self) -> bool:
        """Return whether a primitive computed this Tensor and backward has not passed it yet."""
        return bool(self.requires_grad and self.edges and self.edges is not SPENT)

    def detach(self) -> Tensor:
        """Return a copy as a constant, through which no gradient passes."""
        return record("detach", self._data.copy())

    def __setitem__(self, index: Any, value: Any) -> None:
        if self.requires_grad:
            raise errors.assignment(self)
        if self._data.base is not None:  # a view, through which another Tensor would change
            self._data = self._data.copy()
        self._data[plain_index(index)] = raw(value)
        self.touch()

    def __reduce_ex__(self, protocol: Any) -> Any:
        # How it was computed stays behind: edges are functions, which no file can hold.
        return unpickled, (self._data, self.op, self.requires_grad, self.label, self.grad)

    def __copy__(self) -> Tensor:
        return self.copied(lambda value: value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.copied(lambda value: copy.deepcopy(value, memo), memo)

    def copied(self, each: Callable[[Any], Any], memo: dict[int, Any] | None = None) -> Tensor:
        """Return a Tensor with all that this one has, passed through a function."""
        out = new_tensor(Tensor)
        if memo is not None:
            memo[id(self)] = out
        for name in SLOTS:
            setattr(out, name, each(getattr(self, name)))
        return out


SLOTS = [name for name in Tensor.__slots__ if name != "__weakref__"]


def unpickled(data: np.ndarray, op: str, wants: bool, label: str | None, grad: Any) -> Tensor:
    """Return a Tensor from what was pickled: a leaf, which keeps the name of its primitive."""
    out = record(op, data)
    out.requires_grad, out.label, out.grad = wants, label, grad
    return out


def record(op: str, value: Any, *edges: Edge, saved: tuple = ()) -> Tensor:
    """Return `value` as the Tensor that the primitive `op` computed.

    An edge is (an input, its pull). A pull is called with the gradient of the value and with what
    was saved. It returns a new array, the gradient itself or a view of that. It need not undo
    broadcasting: the walk sums where an input was repeated, and repeats where it was summed.
    """
    out = new_tensor(Tensor)
    out._data = value if type(value) is np.ndarray else np.asarray(value)
    wanted = False
    try:
        for source, _ in edges:
            if source.stamp and source.requires_grad:
                wanted = True
    except AttributeError:  # not every input is a Tensor: no stamp
        edges = tensors_only(op, edges)
        wanted = any(source.requires_grad for source, _ in edges)
    if hooks.watch.lent:
        hooks.watch.look([source for source, _ in edges])
    out.op = op
    out.edges = edges if wanted or not edges else edges_of_constant(out._data, edges)
    out.saved = saved if wanted else ()
    out.requires_grad = wanted
    out.stamp = tick()
    out.label = out.grad = out._operand = None
    return out


def tensors_only(op: str, edges: tuple[Edge, ...]) -> tuple[Edge, ...]:
    """Return the edges whose input is a Tensor; other inputs are constants."""
    for x, _ in edges:
        errors.refuse_lost_gradients(op, x)
    return tuple([edge for edge in edges if isinstance(edge[0], Tensor)])


def edges_of_constant(value: np.ndarray, edges: tuple[Edge, ...]) -> tuple[Edge, ...]:
    """Return those edges of a constant that are worth keeping.

    They serve drawings, and the check of views below. A chain of constants keeps none, so that a
    running average does not hold all its history.
    """
    if any(source.edges or source._operand is not None for source, _ in edges):
        return tuple([edge for edge in edges if np.may_share_memory(value, edge[0]._data)])
    return edges


def seed(end: Tensor, gradient: Any) -> np.ndarray:
    """Return the gradient that a walk starts with: 1, or a copy of the one that was passed."""
    if not end.requires_grad:
        raise errors.nowhere_to_go(end)
    value = end._data
    if gradient is None:
        if value.size != 1:
            raise errors.many_numbers(end)
        return ones(value.shape, value.dtype).copy()
    gradient = np.array(raw(gradient), dtype=value.dtype)
    if gradient.shape != value.shape:
        raise errors.other_shape(end, "the gradient given", gradient.shape)
    return gradient


def history(end: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return the Tensors that a gradient of `end` reaches: the computed ones by stamp; the leaves.

    Raise an error where one of them was freed, or was changed after it had been read.
    """
    if hooks.watch.lent:
        hooks.watch.close()
    if not end.edges:
        return [], [end]
    seen, stack, leaves = {end}, [end], set()
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
            elif source not in seen:
                seen.add(source)
                stack.append(source)
    return sorted(seen, key=attrgetter("stamp")), [x for x in leaves if x.requires_grad]


def check_views(constant: Tensor) -> None:
    """Raise an error where a constant is a view of another that was changed."""
    stack = [constant]
    while stack:
        for source, _ in (reader := stack.pop()).edges:
            if np.may_share_memory(reader._data, source._data):
                if source.stamp > reader.stamp:
                    raise errors.changed(source, reader)
                stack.append(source)


def keep(node: Tensor, g: Any, shared: bool) -> None:
    """Add a finished gradient to the Tensor's `.grad`, in an array that nobody else holds."""
    if node.grad is not None:
        g, shared = node.grad + g, False
    dtype = node._data.dtype
    if shared or g.base is not None or type(g) is not np.ndarray or g.dtype is not dtype:
        if dtype.kind != "f":
            raise errors.no_floats(node.label, dtype)
        g = np.array(g, dtype=dtype)
    node.grad = g


def fitted(g: Any, shape: tuple[int, ...]) -> Any:
    """Return `g` for an input of this shape: summed where that was repeated, or repeated."""
    extra = g.ndim - len(shape)
    if extra > 0 and g.size and g.shape[extra:] == shape:
        rows = g.reshape(-1, math.prod(shape))  # a product is the quickest way to add them
        row_of_ones = (ones if len(rows) <= CACHED else np.ones)(len(rows), g.dtype)
        return row_of_ones.dot(rows).reshape(shape)
    g = shrink(g, shape)
    if g.shape == shape:
        return g
    full = np.empty(shape, g.dtype)
    full[...] = g
    return full


def shrink(g: Any, shape: tuple[int, ...]) -> Any:
    """Return the sum of `g` over the axes along which an input of this shape was repeated."""
    extra = g.ndim - len(shape)
    if extra > 0:
        g = np.add.reduce(g, tuple(range(extra)))
    elif extra < 0:
        g = g.reshape((1,) * -extra + g.shape)
    axes = tuple([i for i, n in enumerate(shape) if n == 1 and g.shape[i] != 1])
    return np.add.reduce(g, axes, keepdims=True) if axes else g
