"""Decoding by the fastest backend that serves: new tokens and a state in, outputs and state out."""

from __future__ import annotations

from typing import Any, cast

from querykey.attention import (
    Array,
    Bias,
    Call,
    Chunk,
    Mechanism,
    Reading,
    Recurrent,
    State,
    blank,
    ready,
    recur,
    warn_of_overflow,
)
from querykey.backends.backend import BackendError, Recur, RecurrentBackend, Request
from querykey.backends.dispatch import attend, check_name, considered, load, serve

RECURRENT = ("triton", "chunked")  # in the order in which auto asks them; else the equation


def extend(
    q: Array,
    k: Array,
    v: Array,
    state: State,
    real: Any = None,
    *,
    bias: Bias | None = None,
    decay: Array | None = None,
    backend: str = "auto",
) -> tuple[Array, State]:
    """Return the outputs of new tokens (batch, heads, tokens, ...), and the state after them.

    `real` (batch, tokens), True or 1 for real tokens, in any order: the others leave nothing in the
    state, and their outputs are zeros. A bias is a rule over positions. A decay is of the new
    tokens, (batch, kv_heads, tokens), as in `attend`; calls without one count it as 0.
    A backend asked for by name serves or refuses, as in `attend`; "reference" is the equation.
    """
    state = ready(q, k, v, state, real, bias, decay)
    return follow(q, k, v, state, real, bias=bias, decay=decay, backend=backend)


def follow(
    q: Array,
    k: Array,
    v: Array,
    state: State,
    real: Any = None,
    *,
    bias: Bias | None = None,
    decay: Array | None = None,
    backend: str = "auto",
) -> tuple[Array, State]:
    """Do as `extend`, for arrays that are known to fit each other and the state's arrays.

    A layer that made both the state and the arrays knows that; asking again at every token takes
    longer than the attention of a small model.
    """
    new = state.chunk(q, k, v, real, decay)
    if new.tokens == 0:
        return blank(q, v), state
    if isinstance(state, Recurrent):
        run = _recurrence(state, new, backend)
        out, outer, total = run(
            state.kernel, new.q, new.k, new.v, state.outer, state.total, new.real_places(),
            *(() if new.decay is None else (new.decay,)),
        )  # fmt: skip
        if state.mechanism.may_overflow:
            warn_of_overflow(state.mechanism, out, q, k, v)
        return new.restore(out), state.after(new, outer, total)
    reading, after = state.reading(new, learning=bias is not None)
    if bias is None and isinstance(reading.start, int):
        out = serve(_request(state, new, reading), backend)
    else:
        out = attend(
            new.q, reading.keys, reading.values, mechanism=state.mechanism, mask=reading.mask,
            bias=bias, start=reading.start, backend=backend,
        )  # fmt: skip
    return new.restore(out), after


def _request(state: State, new: Chunk, reading: Reading) -> Request[Mechanism]:
    """Return a chunk's call of attend, whose sizes are those of the state and need no check."""
    memory, (batch, heads, queries, key_dim) = state.memory, new.q.shape
    call = Call(
        (batch,), heads, memory.kv_heads, queries, reading.keys.shape[2], key_dim,
        memory.value_dim, reading.start, has_heads=True,
    )  # fmt: skip
    keys, values = reading.keys, reading.values
    return Request(new.q, keys, values, memory.mechanism, reading.mask, None, None, call)


def _recurrence(state: Recurrent, new: Chunk, backend: str) -> Recur:
    """Return what takes the chunk into the state's sums: by name, or the fastest that can."""
    tensors = (new.q, new.k, new.v, *state.arrays)

    def refusal(recurrent: RecurrentBackend) -> str | None:
        return recurrent.recurrence_refusal(state.kernel, *tensors, decay=new.decay)

    for name in RECURRENT:
        if backend == "auto" and considered(name, new.q):
            fast = cast(RecurrentBackend, load(name))
            pays = fast.recurrence_pays(new.tokens)
            if pays and refusal(fast) is None:
                return fast.recur
        elif backend == name:
            named = cast(RecurrentBackend, load(name))
            reason = refusal(named)
            if reason is not None:
                raise BackendError(f"backend {name!r} cannot serve this call: {reason}")
            return named.recur
    check_name(backend)
    if backend not in ("auto", "reference", *RECURRENT):
        kind = f"sums that {type(state.mechanism).__name__} attention keeps"
        raise BackendError(f"backend {backend!r} cannot serve this call: it has no use for {kind}")
    return recur
