"""Decoding by a layer that made its own state: the work of `extend` without its questions."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from querykey.attention import state as states
from querykey.attention.masks import Causal, Mask
from querykey.attention.mechanisms import Mechanism, Softmax
from querykey.attention.positions import Bias
from querykey.attention.state import State
from querykey.attention.states import Ways
from querykey.backends import chunked
from querykey.backends.dispatch import LONG, attend


def follow(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: State,
    real: Tensor | None = None,
    *,
    bias: Bias | None = None,
    backend: str = "auto",
) -> tuple[Tensor, State]:
    """Do as `extend`, for tensors that are known to fit each other and the state."""
    if backend == "auto":
        ways = Ways(attend_next, chunked.recur if q.shape[2] >= LONG else None)
    else:
        ways = Ways(
            partial(attend, backend=backend), chunked.recur if backend == "chunked" else None
        )
    return states.follow(q, k, v, state, real, bias=bias, ways=ways)


def attend_next(
    q: Tensor, k: Tensor, v: Tensor, *, mechanism: Mechanism, mask: Mask, bias: Any, start: Any
) -> Tensor:
    """Do as `attend`; where one token that sees every key is all there is, do nothing else.

    For a state that hands over arrays (batch, heads, tokens, features) which fit: nothing is
    checked, and the keys end with the query's own.
    """
    plain = (
        q.shape[2] == 1
        and type(mask) is Causal
        and type(mechanism) is Softmax
        and mechanism.softcap is None
        and bias is None
        and type(start) is int
        and k.shape[3] == v.shape[3]
    )
    if not plain:
        return attend(q, k, v, mechanism=mechanism, mask=mask, bias=bias, start=start)
    assert isinstance(mechanism, Softmax)
    shared = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(
        q, k, v, scale=mechanism.scale_for(q.shape[3]), enable_gqa=shared
    )
