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

from querykey.attention.arrays import Array, device_of, full_precision, is_array, namespace, widened
from querykey.attention.heads import repeat_heads
from querykey.attention.inputs import Call, check_inputs
from querykey.attention.masks import FULL, Mask
from querykey.attention.mechanisms import Argmax, Kernel, Mechanism, Similarity, Softmax
from querykey.attention.positions import Bias


def attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    mechanism: Mechanism = Softmax(),  # noqa: B008 - a frozen value
    mask: Mask = FULL,
    bias: Array | Bias | None = None,
    start: Any = None,
) -> Array:
    """Return sums of values: q (..., T, D), k (..., S, D), v (..., S, M) -> (..., T, M)."""
    call = check_inputs(q, k, v, mechanism, mask, bias, start)
    with full_precision(q):
        seen = visibility(q, mask, call)
        found, spoiled = _weights(q, k, mechanism, seen, bias, call)
        out = weighted_sum(found, _repeated(widened(v), call))
        return namespace(q).astype(_spoil(out, spoiled), v.dtype)


def weights(
    q: Array,
    k: Array,
    *,
    mechanism: Mechanism = Softmax(),  # noqa: B008 - a frozen value
    mask: Mask = FULL,
    bias: Array | Bias | None = None,
    start: Any = None,
) -> Array:
    """Return each query's shares of the keys: (..., T, S); a query that sees nothing has zeros."""
    call = check_inputs(q, k, None, mechanism, mask, bias, start)
    with full_precision(q):
        seen = visibility(q, mask, call)
        found, spoiled = _weights(q, k, mechanism, seen, bias, call)
        return namespace(q).astype(_spoil(found, spoiled & seen), q.dtype)


def _weights(
    q: Array, k: Array, mechanism: Mechanism, seen: Array, bias: Any, call: Call
) -> tuple[Array, Array]:
    """Return the weights of what is finite, and (..., T, 1) which queries see what is not."""
    xp = namespace(q)
    q, k, spoiled = _only_finite(xp, widened(q), _repeated(widened(k), call), seen)
    if isinstance(mechanism, Softmax):
        scores = mechanism.scores(mechanism.scale_for(call.key_dim) * (q @ xp.matrix_transpose(k)))
        if bias is not None:
            scores = scores + bias_values(q, bias, call)
        return softmax(scores, seen), spoiled
    if isinstance(mechanism, Argmax):
        return argmax(q @ xp.matrix_transpose(k), seen), spoiled
    if isinstance(mechanism, Kernel):
        return shares(mechanism.similarity(q, k, where=seen), seen), spoiled
    return shares(_from_function(mechanism, q, k, call), seen), spoiled


def softmax(scores: Array, seen: Array) -> Array:
    """exp(s_j) / sum_j exp(s_j) over the keys that are seen; zeros for a query that sees none."""
    xp = namespace(scores)
    if scores.shape[-1] == 0:
        return scores
    zeros = xp.zeros_like(scores)
    top = xp.max(xp.where(seen, scores, zeros - math.inf), axis=-1, keepdims=True)
    top = xp.where(top == -math.inf, xp.zeros_like(top), top)
    # Guarded on both sides of exp: a hidden score may overflow, and inf times gradient 0 is NaN.
    powers = xp.where(seen, xp.exp(xp.where(seen, scores - top, zeros)), zeros)
    return _shared_out(powers, seen)


def argmax(scores: Array, seen: Array) -> Array:
    """1 for the largest score among the keys that are seen, the first of equals; else 0.

    The weights do not change with the scores, so their gradients are zeros.
    """
    xp = namespace(scores)
    if scores.shape[-1] == 0:
        return scores
    zeros = xp.zeros_like(scores)
    reachable = xp.where(seen, scores, zeros - math.inf)
    first = xp.argmax(reachable, axis=-1, keepdims=True)
    keys = xp.arange(scores.shape[-1], dtype=first.dtype, device=device_of(scores))
    winner = xp.where(seen & (keys == first), zeros + 1, zeros)
    # Chosen nowhere, the scores are still there for the gradient to find.
    return xp.where(keys < 0, scores, winner)


def shares(similarities: Array, seen: Array) -> Array:
    """s_j / sum_j s_j over the keys that are seen; zeros where that sum is exactly 0."""
    xp = namespace(similarities)
    similarities = xp.where(seen, similarities, xp.zeros_like(similarities))
    return _shared_out(similarities, seen)


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


def _shared_out(parts: Array, seen: Array) -> Array:
    xp = namespace(parts)
    total = xp.sum(parts, axis=-1, keepdims=True)
    nothing = total == 0
    weights = parts / xp.where(nothing, xp.ones_like(total), total)
    return xp.where(seen & ~nothing, weights, xp.zeros_like(weights))


def _from_function(mechanism: Similarity, q: Array, k: Array, call: Call) -> Array:
    found = mechanism.function(q, k)
    wanted = (*q.shape[:-1], call.keys)
    if tuple(found.shape) != wanted:
        raise ValueError(
            f"the function of Similarity returned {tuple(found.shape)} for q {tuple(q.shape)} and "
            f"k {tuple(k.shape)}; one number per pair is {wanted}"
        )
    return found


def _repeated(x: Array, call: Call) -> Array:
    return repeat_heads(x, call.heads) if call.has_heads else x


def _beside(q: Array, found: Any, call: Call) -> Array:
    """Bring what index work found into the library of q, without a head axis where q has none."""
    if not call.has_heads:
        found = found[0, ...]
    xp = namespace(q)
    return found if is_array(found) and namespace(found) is xp else xp.asarray(found)
