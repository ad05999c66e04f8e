"""The equation itself, for every mechanism and mask, on any array library.

    scores   how alike each query and key are
    weights  scores made into shares of the visible keys; shares of nothing are 0
    output   the weighted sum of the values

Everything is written with array-API functions, so that gradients flow where the library has them.
What is invisible cannot matter, not even NaN: a number that is not finite is taken out before any
product (0 * NaN is NaN, forward and backward) and put back, as NaN, where it can be seen.
"""

from __future__ import annotations

import math
from typing import Any

from querykey.attention.arrays import (
    Array,
    device_of,
    full_precision,
    is_array,
    namespace,
    running_sum,
    widened,
)
from querykey.attention.biases import Bias
from querykey.attention.heads import key_head, repeat_heads
from querykey.attention.inputs import Call, check_inputs
from querykey.attention.masks import FULL, Mask, real_keys
from querykey.attention.mechanisms import Mechanism, Softmax, warn_of_overflow
from querykey.errors import WrongTypeError


def attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    mechanism: Mechanism = Softmax(),  # noqa: B008 - a frozen value
    mask: Mask = FULL,
    bias: Array | Bias | None = None,
    decay: Array | None = None,
    start: Any = None,
) -> Array:
    """Return sums of values: q (..., T, D), k (..., S, D), v (..., S, M) -> (..., T, M)."""
    if v is None:
        raise WrongTypeError("`v` is no array but None; qk.weights takes q and k alone")
    call = check_inputs(q, k, v, mechanism, mask, bias, start, decay)
    return attend_checked(q, k, v, mechanism, mask, call, bias, decay)


def attend_checked(
    q: Array,
    k: Array,
    v: Array,
    mechanism: Mechanism,
    mask: Mask,
    call: Call,
    bias: Array | Bias | None = None,
    decay: Array | None = None,
) -> Array:
    """Do as `attend`, for arguments whose sizes `check_inputs` returned."""
    with full_precision(q):
        seen = visibility(q, mask, call)
        more = _more(q, mask, call, bias, decay)
        shares, spoiled = _weights(q, k, mechanism, seen, call, more)
        out = weighted_sum(shares, _repeated(widened(v), call))
        return namespace(q).astype(_spoil(out, spoiled), v.dtype)


def weights(
    q: Array,
    k: Array,
    *,
    mechanism: Mechanism = Softmax(),  # noqa: B008 - a frozen value
    mask: Mask = FULL,
    bias: Array | Bias | None = None,
    decay: Array | None = None,
    start: Any = None,
) -> Array:
    """Return each query's shares of the keys: (..., T, S); a query that sees nothing has zeros."""
    call = check_inputs(q, k, None, mechanism, mask, bias, start, decay)
    with full_precision(q):
        seen = visibility(q, mask, call)
        more = _more(q, mask, call, bias, decay)
        shares, spoiled = _weights(q, k, mechanism, seen, call, more)
        out = namespace(q).astype(_spoil(shares, spoiled & seen), q.dtype)
    if mechanism.may_overflow:
        warn_of_overflow(mechanism, out, q, k)
    return out


def _weights(
    q: Array, k: Array, mechanism: Mechanism, seen: Array, call: Call, more: dict[str, Array]
) -> tuple[Array, Array]:
    """Return the weights of what is finite, and (..., T, 1) which queries see what is not."""
    q, k, spoiled = _only_finite(namespace(q), widened(q), _repeated(widened(k), call), seen)
    return mechanism.weights(q, k, seen, **more), spoiled


def _more(
    q: Array, mask: Mask, call: Call, bias: Array | Bias | None, decay: Array | None
) -> dict[str, Array]:
    """Return what goes into the weights beside q and k: a bias and factors of decay, if any."""
    more = {}
    if bias is not None:
        more["bias"] = bias_values(widened(q), bias, call)
    if decay is not None:
        more["decay"] = decay_factors(decay, mask, call)
    return more


def weighted_sum(weights: Array, v: Array) -> Array:
    """sum_j w_j v_j, where a value of weight 0 adds nothing, whatever it is."""
    xp = namespace(v)
    finite = xp.isfinite(v)
    total = weights @ xp.where(finite, v, xp.zeros_like(v))
    meets = xp.astype(weights != 0, v.dtype) @ xp.astype(~finite, v.dtype)
    return _spoil(total, meets > 0)


def visibility(q: Array, mask: Mask, call: Call) -> Array:
    """Return the mask's booleans beside q, in a shape that broadcasts against the scores."""
    query, key, at = call.places(q)
    return _beside(q, mask.on(q).visible_at(query, key, at), call)


def bias_values(q: Array, bias: Array | Bias, call: Call) -> Array:
    """Return the numbers to add to the scores, in a shape that broadcasts against them."""
    if not isinstance(bias, Bias):
        return namespace(q).astype(bias, q.dtype)
    query, key, at = call.places(q)
    return namespace(q).astype(_beside(q, bias.on(q).values(query, key, at.head), call), q.dtype)


def decay_factors(decay: Array, mask: Mask, call: Call) -> Array:
    """Return exp(decay[j + 1] + ... + decay[i]) of query position i and key j; padding adds 0."""
    xp, decay = namespace(decay), widened(decay)
    real = real_keys(mask, decay)
    if real is not None:
        real = xp.asarray(real[..., None, :] if call.has_heads else real)
        decay = xp.where(real, decay, xp.zeros_like(decay))
    sums = sums_between(decay)
    if isinstance(call.start, int) and call.start == 0 and call.queries == call.keys:
        return xp.exp(_repeated(sums, call))
    query, key, at = call.places(decay)
    # A query before the first key sees nothing; one behind the last was refused where that is
    # known, and else keeps the last value.
    query = namespace(query).clip(query, 0, max(call.keys - 1, 0))
    if not call.has_heads:
        return xp.exp(sums[query[0, ...], key[0, ...]])
    serving = key_head(at.head, call.heads, call.kv_heads)
    return xp.exp(sums[(*at.batch, serving, query, key)])


def sums_between(decay: Array) -> Array:
    """Return decay[j + 1] + ... + decay[i] for all i and j <= i of (..., S), and 0 for j > i.

    Each is a sum by itself: differences of sums from the first token on would lose digits.
    """
    xp = namespace(decay)
    place = xp.arange(decay.shape[-1], device=device_of(decay))
    behind = place[:, None] > place[None, :]
    table = xp.where(behind, decay[..., :, None], xp.zeros_like(decay)[..., None, :])
    return running_sum(table, axis=-2)


def _only_finite(xp: Any, q: Array, k: Array, seen: Array) -> tuple[Array, Array, Array]:
    """Return q and k without what is not finite or never used, and which queries that concerns."""
    q_sound, k_sound = (xp.all(xp.isfinite(x), axis=-1, keepdims=True) for x in (q, k))
    q_used, k_used = xp.any(seen, axis=-1)[..., None], xp.any(seen, axis=-2)[..., None]
    meets = xp.any(seen & ~xp.matrix_transpose(k_sound), axis=-1, keepdims=True)
    q = xp.where(q_sound & q_used, q, xp.zeros_like(q))
    k = xp.where(k_sound & k_used, k, xp.zeros_like(k))
    return q, k, meets | (~q_sound & q_used)


def _spoil(numbers: Array, spoiled: Array) -> Array:
    xp = namespace(numbers)
    return xp.where(spoiled, xp.zeros_like(numbers) + math.nan, numbers)


def _repeated(x: Array, call: Call) -> Array:
    return repeat_heads(x, call.heads) if call.has_heads else x


def _beside(q: Array, table: Any, call: Call) -> Array:
    """Bring a table over pairs into the library of q, without a head axis where q has none."""
    if not call.has_heads:
        table = table[0, ...]
    xp = namespace(q)
    return table if is_array(table) and namespace(table) is xp else xp.asarray(table)
