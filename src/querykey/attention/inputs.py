"""Whether a call of attend makes sense: the one place that looks, and what it says if not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import array_api_compat as compat

from querykey.attention.arrays import (
    Array,
    described,
    index_library,
    is_array,
    is_floating,
    is_integer,
    library,
)
from querykey.attention.masks import ArrayMask, Dense, Documents, Mask
from querykey.attention.mechanisms import Argmax, Kernel, Mechanism, Similarity, Softmax
from querykey.attention.positions import Bias
from querykey.attention.rules import places
from querykey.shapes import ShapeError, bind


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
) -> Call:
    """Return the sizes of the call, or raise the one error that says what does not fit."""
    arrays = {"q": q, "k": k} | ({} if v is None else {"v": v})
    _check_kinds(arrays)
    if not isinstance(mechanism, Softmax | Argmax | Kernel | Similarity):
        raise TypeError(
            f"mechanism wants Softmax(), Argmax(), Kernel(features) or Similarity(function); "
            f"got {mechanism!r}"
        )
    if not isinstance(mask, Mask):
        raise TypeError(
            _shown("mask wants a rule, such as Causal() or Dense(array)", arrays, mask=mask)
        )
    named = _named_axes(arrays)
    sizes = _bind_heads(named, arrays)
    _check_mask(mask, named, arrays)
    _check_bias(bias, mechanism, sizes.get("head"), named, arrays)
    start = _check_start(start, mask, bias, sizes, named, arrays)
    batch = tuple(size for axis, size in sizes.items() if axis.startswith("batch"))
    return Call(
        batch=batch,
        heads=sizes.get("head", 1),
        kv_heads=sizes.get("kv_head", sizes.get("head", 1)),
        queries=sizes["query"],
        keys=sizes["key"],
        key_dim=sizes["key_dim"],
        value_dim=sizes.get("value_dim"),
        start=start,
        has_heads="head" in sizes,
    )


def _check_kinds(arrays: dict[str, Array]) -> None:
    """One library, one floating dtype, one device."""
    for name, array in arrays.items():
        if not is_array(array):
            raise TypeError(_shown(f"`{name}` is no array but a {type(array).__name__}", arrays))
    for name, array in arrays.items():
        if library(array) != library(arrays["q"]):
            raise TypeError(
                _shown(
                    f"`q` is a {library(arrays['q'])} array but `{name}` is of {library(array)}",
                    arrays,
                )
            )
    for name, array in arrays.items():
        if not is_floating(array):
            raise TypeError(
                _shown(
                    f"attention wants floating-point arrays, but `{name}` is {array.dtype}", arrays
                )
            )
    q = arrays["q"]
    for name, array in arrays.items():
        if array.dtype != q.dtype:
            raise TypeError(_shown(f"`q` is {q.dtype} but `{name}` is {array.dtype}", arrays))
        if compat.device(array) != compat.device(q):
            raise ValueError(
                _shown(
                    f"`q` is on {compat.device(q)} but `{name}` is on {compat.device(array)}",
                    arrays,
                )
            )


_LAST = {"q": "query key_dim", "k": "key key_dim", "v": "key value_dim"}


def _named_axes(arrays: dict[str, Array]) -> dict[str, tuple[Array, str]]:
    """Pair every array with the names of its axes, at the rank of the largest."""
    rank = max(len(array.shape) for array in arrays.values())
    if rank < 2:
        names = {
            name: (array, last)
            for (name, array), last in zip(arrays.items(), _LAST.values(), strict=False)
        }
        bind(**names)
    many = rank - 3
    batch = ["batch"] if many == 1 else [f"batch_{i + 1}" for i in range(many)]
    heads = tuple(arrays["q"].shape[-3:-2])
    named = {}
    for name, array in arrays.items():
        shared = name == "q" or tuple(array.shape[-3:-2]) == heads
        head = [] if rank < 3 else ["head" if shared else "kv_head"]
        named[name] = (array, " ".join([*batch, *head, _LAST[name]]))
    return named


def _bind_heads(named: dict[str, tuple[Array, str]], arrays: dict[str, Array]) -> dict[str, Any]:
    try:
        sizes = bind(**named)
    except ShapeError as error:
        slip = next((n for n, a in arrays.items() if len(a.shape) == 3), None)
        ranks = {len(array.shape) for array in arrays.values()}
        if slip is not None and ranks == {3, 4}:
            raise error.with_hint(f"`{slip}[:, None]` adds a head axis to `{slip}`") from None
        raise
    heads, kv_heads = sizes.get("head"), sizes.get("kv_head")
    if kv_heads is not None and (kv_heads == 0 or heads % kv_heads):
        raise ShapeError(
            f"{heads} query heads cannot share {kv_heads} key heads evenly", named, "k"
        )
    v_heads = named.get("v", named["k"])[0].shape[-3:-2]
    if tuple(v_heads) != tuple(named["k"][0].shape[-3:-2]):
        raise ShapeError("`k` and `v` have different numbers of heads", named, "v")
    return sizes


def _check_mask(mask: Mask, named: dict, arrays: dict[str, Array]) -> None:
    for leaf in mask.leaves:
        if not isinstance(leaf, ArrayMask):
            continue
        _check_place("mask", leaf.array, arrays)
        q_axes = named["q"][1].split()
        batch = [axis for axis in q_axes if axis.startswith("batch")]
        if isinstance(leaf, Dense):
            axes = _table_axes(leaf.array, named)
        else:
            axes = " ".join([*batch, "key"])
        try:
            bind(**named, mask=(leaf.array, axes))
        except ShapeError as error:
            if len(q_axes) == 3 and len(leaf.array.shape) == 2 and not isinstance(leaf, Dense):
                hint = "three axes are (head, query, key_dim); `q[:, None]` makes the first a batch"
                raise error.with_hint(hint) from None
            raise


def _check_bias(
    bias: Any, mechanism: Mechanism, heads: int | None, named: dict, arrays: dict
) -> None:
    if bias is None:
        return
    if not isinstance(mechanism, Softmax):
        raise ValueError(f"a bias is added to the scores of Softmax; {mechanism} has no use for it")
    if isinstance(bias, Bias):
        if not bias.fits(1 if heads is None else heads):
            raise ValueError(_shown(f"{bias} does not fit the heads of `q`", arrays))
        return
    if not is_array(bias) or not is_floating(bias):
        raise TypeError(
            _shown(
                "bias wants a floating-point array or a rule such as ALiBi(heads); "
                "what may be seen goes into mask=",
                arrays,
                bias=bias,
            )
        )
    _check_place("bias", bias, arrays, exact=True)
    bind(**named, bias=(bias, _table_axes(bias, named)))


def _table_axes(table: Array, named: dict) -> str:
    """Name the axes of a table over pairs, (T, S) up to (*batch, heads, T, S)."""
    outer = named["q"][1].split()[:-2]
    shape = tuple(table.shape)
    wanted = [*outer, "query", "key"][-max(len(shape), 2) :]
    free = len(wanted) - 2
    return (
        " ".join(
            "any" if i < free and n == 1 else axis
            for i, (axis, n) in enumerate(zip(wanted, shape, strict=False))
        )
        if len(wanted) == len(shape)
        else " ".join(wanted)
    )


def _check_place(name: str, array: Array, arrays: dict[str, Array], exact: bool = False) -> None:
    """A mask or bias lives where q does; a NumPy mask is moved there."""
    q = arrays["q"]
    if exact and library(array) != library(q):
        raise TypeError(
            _shown(
                f"`q` is a {library(q)} array but `{name}` is of {library(array)}",
                arrays,
                **{name: array},
            )
        )
    if library(array) == library(q) and compat.device(array) != compat.device(q):
        raise ValueError(
            _shown(
                f"`q` is on {compat.device(q)} but `{name}` is on {compat.device(array)}",
                arrays,
                **{name: array},
            )
        )


def _check_start(start: Any, mask: Mask, bias: Any, sizes: dict, named: dict, arrays: dict) -> Any:
    queries, keys = sizes["query"], sizes["key"]
    if start is None:
        asking = mask if mask.uses_positions else bias if isinstance(bias, Bias) else None
        if queries != keys and asking is not None:
            raise ValueError(
                _shown(
                    f"{asking} asks where the queries stand, and there are {queries} for {keys} "
                    f"keys: pass start, the position of the first query",
                    arrays,
                )
            )
        return 0
    if is_array(start):
        if not is_integer(start):
            raise TypeError(_shown("start wants whole numbers", arrays, start=start))
        batch = [axis for axis in named["q"][1].split() if axis.startswith("batch")]
        if start.shape:
            bind(**named, start=(start, " ".join(batch)))
    elif not isinstance(start, int) or isinstance(start, bool):
        raise TypeError(f"start wants an int, or an int array (*batch,); got {start!r}")
    _check_ends(start, queries, mask, arrays)
    return start


def _check_ends(start: Any, queries: int, mask: Mask, arrays: dict[str, Array]) -> None:
    """Every query needs an id in Documents; known without waiting for a device, or not at all."""
    if is_array(start) and (library(start) != "numpy" or not start.size):
        return
    last = int(start.max() if is_array(start) else start) + queries - 1
    for leaf in mask.leaves:
        if isinstance(leaf, Documents) and queries and last >= leaf.ids.shape[-1]:
            raise ValueError(
                _shown(f"{leaf} has no id for the last query, at position {last}", arrays)
            )


def _shown(problem: str, arrays: dict[str, Any], **more: Any) -> str:
    """Say the problem, then every array: its dtype, shape and device."""
    lines = [problem]
    for name, value in (arrays | more).items():
        what = f"{tuple(value.shape)} {described(value)}" if is_array(value) else repr(value)
        lines.append(f"  {name:<6} {what}")
    return "\n".join(lines)
