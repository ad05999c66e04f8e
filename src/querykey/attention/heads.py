"""Splitting and joining heads; which key head serves which query head."""

from __future__ import annotations

from typing import Any

from querykey.attention.arrays import Array, constant, namespace
from querykey.errors import QuerykeyError


def split_heads(x: Array, heads: int) -> Array:
    """Turn (..., tokens, heads * features) into (..., heads, tokens, features)."""
    *outer, tokens, width = x.shape
    if width % heads:
        raise QuerykeyError(f"{width} features do not split into {heads} heads of one size")
    xp = namespace(x)
    return _swap(xp, xp.reshape(x, (*outer, tokens, heads, width // heads)))


def join_heads(x: Array) -> Array:
    """Turn (..., heads, tokens, features) into (..., tokens, heads * features)."""
    *outer, heads, tokens, width = x.shape
    xp = namespace(x)
    return xp.reshape(_swap(xp, x), (*outer, tokens, heads * width))


def _swap(xp: Any, x: Array) -> Array:
    """Swap the axes of heads and tokens. torch has no rule for `moveaxis` under `vmap`."""
    *outer, first, second, last = range(x.ndim)
    return xp.permute_dims(x, (*outer, second, first, last))


def key_head(head: int, heads: int, kv_heads: int) -> int:
    """Return the key head that query head `head` reads; works on arrays of heads too."""
    return head // (heads // kv_heads)


def repeat_heads(x: Array, heads: int) -> Array:
    """Give each of `heads` query heads its own copy of the key or value head that it reads."""
    kv_heads = x.shape[-3]
    if heads == kv_heads:
        return x
    serving = constant([key_head(h, heads, kv_heads) for h in range(heads)], x)
    return namespace(x).take(x, serving, axis=-3)
