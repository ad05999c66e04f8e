"""What decoding must remember, as values: growing (keys, values), sliding, recurrent.

    state = empty_state(Softmax(), mask=Causal(), batch=2, kv_heads=4, key_dim=64, value_dim=64)
    out, state = extend(q, k, v, state)        # any number of new tokens

A state is a value: extending it leaves it as it was, so that a prompt can be continued many times.
Any split of a sequence gives the outputs of the whole.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from querykey.attention.arrays import Array, described, is_array, is_dense, kind_of, widened
from querykey.attention.biases import Bias
from querykey.attention.decoding.growing import Growing
from querykey.attention.decoding.recurrent import Recurrent
from querykey.attention.decoding.sliding import Sliding
from querykey.attention.decoding.state import Memory, State
from querykey.attention.inputs import check_inputs, check_specs
from querykey.attention.masks import FULL, ArrayMask, Causal, Mask, Padding
from querykey.attention.mechanisms import Mechanism
from querykey.errors import QuerykeyError, WrongTypeError
from querykey.shapes import bind
from querykey.words import room_for, whole


def empty_state(
    mechanism: Mechanism,
    mask: Mask = Causal(),  # noqa: B008 - a frozen value
    batch: int = 1,
    *,
    kv_heads: int,
    key_dim: int,
    value_dim: int,
    capacity: int | None = None,
    like: Array = None,
) -> State:
    """Return the state before the first token, or refuse where the mask cannot decode.

    Kernel attention that is causal keeps sums of constant size; a causal window keeps the keys and
    values that it can still reach; all else keeps every key and value, with room for `capacity`
    tokens at once (it grows beyond). Library, dtype and device are those of `like`, or else of the
    first tokens; sums are never kept in less than float32.
    """
    check_specs(mechanism, mask, {})
    for name, size in {"batch": batch, "capacity": 0 if capacity is None else capacity}.items():
        whole(name, size, least=0)
    for name, size in {"kv_heads": kv_heads, "key_dim": key_dim, "value_dim": value_dim}.items():
        whole(name, size)
    _check_can_decode(mask)
    memory = Memory(mechanism, mask, kv_heads, key_dim, value_dim)
    with room_for(f"a state of {batch} rows"):
        counts = (0,) * batch
    if mask == mechanism.sums_suffice_under:
        state = Recurrent(memory, counts)
    elif mask.relative and math.isfinite(mask.reach):
        state = Sliding(memory, counts)
    else:
        state = Growing(memory, counts, capacity=capacity or 0)
    if like is None:
        return state
    if not is_array(like) or not is_dense(like):
        kind = kind_of(like) if is_array(like) else type(like).__name__
        raise WrongTypeError(f"`like` is a dense array of some library; got {kind}")
    with room_for(f"a state of {batch} rows and {capacity or 0} tokens"):
        return state.started(like)


def _check_can_decode(mask: Mask) -> None:
    """Refuse a mask under which a new token would change what was computed for earlier ones."""
    for leaf in mask.leaves:
        if isinstance(leaf, ArrayMask):
            raise QuerykeyError(
                f"{leaf} has as many entries as there are tokens, and decoding adds tokens; "
                f"say which are real through extend(..., real=...)"
            )
    if math.isinf(mask.settles):
        raise QuerykeyError(
            f"{mask} lets a query see keys that come after it, so what was computed would change "
            f"with every new token; decoding wants a mask with Causal() in it"
        )


def ready(
    q: Array,
    k: Array,
    v: Array,
    state: State,
    real: Any = None,
    bias: Bias | None = None,
    decay: Array | None = None,
) -> State:
    """Return the state with its arrays made, where new tokens fit it; else say what does not."""
    if bias is not None and not isinstance(bias, Bias):
        raise WrongTypeError(
            "extend wants a bias that is a rule over positions, such as ALiBi(heads)"
        )
    if not isinstance(state, State):
        raise WrongTypeError(f"extend wants a state, from empty_state; got {type(state).__name__}")
    if v is None:
        raise WrongTypeError("`v` is no array but a NoneType")
    mask = FULL if decay is None else state.mask
    if decay is not None and real is not None:
        mask = mask & Padding(real)
    check_inputs(q, k, v, state.mechanism, mask, bias, start=0, decay=decay)
    memory = state.memory
    sizes = (len(state.counts), memory.kv_heads, memory.key_dim, memory.value_dim)
    bind(
        state=(SimpleNamespace(shape=sizes), "batch kv_head key_dim value_dim"),
        q=(q, "batch head new key_dim"),
        k=(k, "batch kv_head new key_dim"),
        v=(v, "batch kv_head new value_dim"),
    )
    if not state.arrays:
        state = state.started(k)
    _check_kind(k, state)
    return state


def _check_kind(k: Array, state: State) -> None:
    held = state.arrays[0]
    dtype = widened(k).dtype if isinstance(state, Recurrent) else k.dtype
    ours, theirs = described(held), described(k, dtype)
    if ours != theirs:
        raise WrongTypeError(f"the state is {ours} but the new tokens are {theirs}")
