"""Whether a call of attend makes sense: the one place that looks, and what it says if not."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from querykey.attention.algebra import places, position_range, split
from querykey.attention.arrays import (
    Array,
    described,
    device_of,
    index_library,
    is_array,
    is_dense,
    is_floating,
    is_integer,
    kind_of,
    library,
    namespace,
    same_dtype,
    values_are_at_hand,
)
from querykey.attention.biases import Bias
from querykey.attention.masks import (
    ArrayMask,
    Causal,
    Dense,
    Documents,
    Mask,
    Padding,
    real_keys,
)
from querykey.attention.mechanisms import Mechanism
from querykey.errors import QuerykeyError, WrongTypeError
from querykey.shapes import ShapeError, bind
from querykey.words import LARGEST, a_type

DECAYING = (Causal, Padding, Documents)  # the rules under which a decay has a meaning
Arrays = dict[str, Array]  # by the names they have in the call
Axes = dict[str, tuple[Array, str]]  # the same, with the names of their axes


@dataclass(frozen=True)
class Call:
    """The sizes of a call that makes sense, and where its queries stand."""

    batch: tuple[int, ...]
    heads: int  # 1 where q has no head axis
    kv_heads: int
    queries: int
    keys: int
    key_dim: int
    value_dim: int | None
    start: Any  # an int, or an int array (*batch,)
    has_heads: bool  # whether q has a head axis

    def places(self, like: Array):
        """Return query positions, key positions and places, which broadcast to the scores' shape.

        They are in the index library of `like` and have a head axis even where q has none.
        """
        xp, device = index_library(like)
        return places(xp, device, self.batch, self.heads, self.queries, self.keys, self.start)


def check_inputs(
    q: Array,
    k: Array,
    v: Array | None,
    mechanism: Mechanism,
    mask: Mask,
    bias: Array | Bias | None = None,
    start: Any = None,
    decay: Array | None = None,
) -> Call:
    """Return the sizes of the call, or raise the one error that says what does not fit."""
    arrays = {"q": q, "k": k} if v is None else {"q": q, "k": k, "v": v}
    _check_kinds(arrays)
    axes = _named_axes(arrays)
    sizes = _bound(axes)
    check_specs(mechanism, mask, arrays)
    for leaf in mask.leaves:
        if isinstance(leaf, ArrayMask):
            _check_array_mask(leaf, axes, arrays)
    if bias is not None:
        _check_bias(bias, mechanism, sizes.get("head", 1), axes, arrays)
    if start is None:
        _check_start_is_known(mask, bias, sizes, arrays)
    else:
        _check_start(start, mask, sizes["query"], axes, arrays)
    if decay is not None:
        _check_decay(decay, mechanism, mask, 0 if start is None else start, sizes, axes, arrays)
    heads = sizes.get("head", 1)
    return Call(
        batch=tuple(size for axis, size in sizes.items() if axis.startswith("batch")),
        heads=heads,
        kv_heads=sizes.get("kv_head", heads),
        queries=sizes["query"],
        keys=sizes["key"],
        key_dim=sizes["key_dim"],
        value_dim=sizes.get("value_dim"),
        start=0 if start is None else start,
        has_heads="head" in sizes,
    )


def _check_kinds(arrays: Arrays) -> None:
    """One library, floating-point numbers of one dtype, one device."""
    for name, array in arrays.items():
        if getattr(array, "is_nested", False):  # such a tensor has no shape to show
            raise WrongTypeError(f"attention wants dense arrays, but `{name}` is a nested tensor")
        if array is None or not is_array(array):
            raise WrongTypeError(_shown(f"`{name}` is no array but {a_type(array)}", arrays))
    for name in arrays:
        _check_same_library(name, arrays)
    for name, array in arrays.items():
        if not is_floating(array) or array.dtype.itemsize == 1:
            problem = (
                f"attention wants floating-point arrays of 16 bits or more, but `{name}` is "
                f"{array.dtype}"
            )
            raise WrongTypeError(_shown(problem, arrays))
        if not is_dense(array):
            problem = f"attention wants dense arrays, but `{name}` is a {kind_of(array)}"
            raise WrongTypeError(_shown(problem, arrays))
    for name, array in arrays.items():
        if not same_dtype(array, arrays["q"]):
            problem = f"`q` is {arrays['q'].dtype} but `{name}` is {array.dtype}"
            raise WrongTypeError(_shown(problem, arrays))
        _check_same_device(name, arrays)


def _check_same_library(name: str, arrays: Arrays) -> None:
    ours, theirs = library(arrays["q"]), library(arrays[name])
    if ours != theirs:
        raise WrongTypeError(_shown(f"`q` is a {ours} array but `{name}` is of {theirs}", arrays))


def _check_same_device(name: str, arrays: Arrays) -> None:
    ours, theirs = device_of(arrays["q"]), device_of(arrays[name])
    if ours != theirs:
        raise QuerykeyError(_shown(f"`q` is on {ours} but `{name}` is on {theirs}", arrays))


def _named_axes(arrays: Arrays) -> Axes:
    """Pair every array with the names of its axes, at the rank of the largest."""
    rank = max(2, *(len(array.shape) for array in arrays.values()))
    batch = ["batch"] if rank == 4 else [f"batch_{i + 1}" for i in range(rank - 3)]
    heads = tuple(arrays["q"].shape[-3:-2])
    axes = {}
    for name, array in arrays.items():
        head = "head" if name == "q" or tuple(array.shape[-3:-2]) == heads else "kv_head"
        outer = [*batch, head] if rank > 2 else []
        axes[name] = (array, " ".join([*outer, _LAST[name]]))
    return axes


_LAST = {"q": "query key_dim", "k": "key key_dim", "v": "key value_dim"}


def _bound(axes: Axes) -> dict[str, Any]:
    """Return the size of each axis, where every array fits the others."""
    try:
        sizes = bind(**axes)
    except ShapeError as error:
        ranks = {name: len(array.shape) for name, (array, _) in axes.items()}
        if set(ranks.values()) == {3, 4}:
            slip = next(name for name, rank in ranks.items() if rank == 3)
            raise error.with_hint(f"`{slip}[:, None]` adds a head axis to `{slip}`") from None
        raise
    heads, kv_heads = sizes.get("head", 1), sizes.get("kv_head")
    if kv_heads is not None and (0 in (heads, kv_heads) or heads % kv_heads):
        problem = f"{heads} query heads cannot share {kv_heads} key heads evenly"
        raise ShapeError(problem, axes, here="k")
    key_heads, *others = (tuple(a.shape[-3:-2]) for name, (a, _) in axes.items() if name != "q")
    if any(other != key_heads for other in others):  # no set: in a trace a size is a tensor
        raise ShapeError("`k` and `v` have different numbers of heads", axes, here="v")
    return sizes


def check_specs(mechanism: Any, mask: Any, arrays: Arrays) -> None:
    """Refuse what is no mechanism or no mask."""
    if not isinstance(mechanism, Mechanism):
        raise WrongTypeError(
            f"mechanism wants a Mechanism, such as Softmax() or Kernel(Quadratic()); "
            f"got {mechanism!r}"
        )
    if not isinstance(mask, Mask):
        problem = "mask wants a rule, such as Causal() or Dense(array)"
        raise WrongTypeError(_shown(problem, arrays | {"mask": mask}))


def _check_array_mask(leaf: ArrayMask, axes: Axes, arrays: Arrays) -> None:
    """The mask's array fits; a NumPy array need not be where q is, for it is moved there."""
    if library(leaf.array) == library(arrays["q"]):
        _check_same_device("mask", arrays | {"mask": leaf.array})
    if isinstance(leaf, Dense):
        rank, wanted = len(leaf.array.shape), len(arrays["q"].shape)
        if rank not in (2, wanted):
            problem = (
                f"the array of Dense has rank 2, (query, key), or that of `q`, {wanted}; it has "
                f"rank {rank}"
            )
            raise ShapeError(problem, axes | {"mask": (leaf.array, "query key")}, here="mask")
        bind(**axes, mask=(leaf.array, _table_axes(leaf.array, axes)))
        return
    try:
        bind(**axes, mask=(leaf.array, " ".join([*_batch_axes(axes), "key"])))
    except ShapeError as error:
        if len(arrays["q"].shape) == 3 and len(leaf.array.shape) == 2:
            hint = "three axes are (head, query, key_dim); `q[:, None]` makes the first a batch"
            raise error.with_hint(hint) from None
        raise


def _check_bias(bias: Any, mechanism: Mechanism, heads: int, axes: Axes, arrays: Arrays) -> None:
    if not mechanism.takes_bias:
        raise QuerykeyError(
            f"a bias is added to the scores of Softmax; {mechanism} has no use for it"
        )
    if isinstance(bias, Bias):
        if not bias.fits(heads):
            raise QuerykeyError(_shown(f"{bias} does not fit the heads of `q`", arrays))
        return
    arrays = arrays | {"bias": bias}
    if not is_array(bias) or not is_floating(bias):
        problem = (
            "bias wants a floating-point array or a rule such as ALiBi(heads); "
            "what may be seen goes into mask="
        )
        raise WrongTypeError(_shown(problem, arrays))
    if not is_dense(bias):
        problem = f"a bias is a dense array, not a {kind_of(bias)}"
        raise WrongTypeError(_shown(problem, arrays))
    _check_same_library("bias", arrays)
    _check_same_device("bias", arrays)
    bind(**axes, bias=(bias, _table_axes(bias, axes)))


def check_takes_decay(mechanism: Mechanism, mask: Mask) -> None:
    """Refuse a decay where the mechanism or the mask has no use for it."""
    if not mechanism.takes_decay:
        raise QuerykeyError(
            f"a decay multiplies the similarities of Kernel; {mechanism} has no use for it"
        )
    parts = split(mask)
    if Causal() not in parts or any(type(part) not in DECAYING for part in parts):
        raise QuerykeyError(
            f"a decay runs from a key to a later query: it wants Causal(), with Padding and "
            f"Documents or without; got {mask}"
        )


def _check_decay(
    decay: Any,
    mechanism: Mechanism,
    mask: Mask,
    start: Any,
    sizes: dict[str, Any],
    axes: Axes,
    arrays: Arrays,
) -> None:
    """The decay is of the keys' kind and shape, covers every query, and is at most 0."""
    check_takes_decay(mechanism, mask)
    arrays = arrays | {"decay": decay}
    _check_kinds(arrays)
    bind(**axes, decay=(decay, " ".join(axes["k"][1].split()[:-1])))
    last = position_range(sizes["query"], start)[1] if sizes["query"] else -1
    if last >= sizes["key"]:
        problem = f"decay has no value for the last query, at position {last}"
        raise QuerykeyError(_shown(problem, arrays))
    _check_decay_values(decay, mask, arrays)


def _check_decay_values(decay: Array, mask: Mask, arrays: Arrays) -> None:
    """Refuse values above 0, NaN and -inf at tokens that are real, where looking costs nothing."""
    if not values_are_at_hand(decay):
        return
    xp, real = namespace(decay), real_keys(mask, decay)
    wrong = ~((decay <= 0) & (decay > -math.inf))
    if real is not None:
        wrong = wrong & xp.asarray(real[..., None, :] if len(decay.shape) > 1 else real)
    if bool(xp.any(wrong)):
        first = np.argmax(np.asarray(xp.astype(wrong, xp.int8)))
        place = tuple(int(i) for i in np.unravel_index(first, tuple(decay.shape)))
        problem = (
            f"decay is the logarithm of a gate, so it is finite and at most 0; "
            f"got {float(decay[place]):g} at {place}"
        )
        raise QuerykeyError(_shown(problem, arrays))


def _batch_axes(axes: Axes) -> list[str]:
    return [axis for axis in axes["q"][1].split() if axis.startswith("batch")]


def _table_axes(table: Array, axes: Axes) -> str:
    """Name the axes of a table over pairs: (query, key), with batch and head before as it has them.

    A size of 1 fits any batch and head.
    """
    names = [*axes["q"][1].split()[:-2], "query", "key"][-max(len(table.shape), 2) :]
    if len(names) != len(table.shape):
        return " ".join(names)
    outer = zip(names[:-2], table.shape, strict=False)
    return " ".join([*("any" if size == 1 else name for name, size in outer), "query", "key"])


def _check_start_is_known(mask: Mask, bias: Any, sizes: dict[str, Any], arrays: Arrays) -> None:
    asking = mask if mask.uses_positions else bias if isinstance(bias, Bias) else None
    if asking is not None and sizes["query"] != sizes["key"]:
        problem = (
            f"{asking} asks where the queries stand, and there are {sizes['query']} for "
            f"{sizes['key']} keys: pass start, the position of the first query"
        )
        raise QuerykeyError(_shown(problem, arrays))


def _check_start(start: Any, mask: Mask, queries: int, axes: Axes, arrays: Arrays) -> None:
    if isinstance(start, bool) or not (isinstance(start, int) or is_array(start)):
        raise WrongTypeError(f"start wants an int, or an int array (*batch,); got {start!r}")
    if not isinstance(start, int):
        if not is_integer(start):
            raise WrongTypeError(_shown("start wants whole numbers", arrays | {"start": start}))
        if start.shape:
            bind(**axes, start=(start, " ".join(_batch_axes(axes))))
    first, last = position_range(queries, start)
    if last > LARGEST:
        raise QuerykeyError(f"start is a position, so it is at most 2^62; got {start}")
    if first < 0:
        problem = f"start is the position of the first query, so it is at least 0; got {first}"
        raise QuerykeyError(_shown(problem, arrays))
    try:
        mask.check_places(queries, start)
    except ValueError as error:
        raise QuerykeyError(_shown(str(error), arrays)) from None


def _shown(problem: str, arrays: Arrays) -> str:
    """Say the problem, then every array: its shape, dtype and device."""
    lines = [problem]
    for name, value in arrays.items():
        what = f"{tuple(value.shape)} {described(value)}" if is_array(value) else repr(value)
        lines.append(f"  {name:<6} {what}")
    return "\n".join(lines)
