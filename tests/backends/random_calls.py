"""Random calls of attention through every backend that serves them, against the equation.

    python -m tests.backends.random_calls --seconds 1800 --seed 1

A call is drawn by hypothesis: shapes, a mechanism, a mask made of several rules, a bias, gates and
positions. A backend that refuses it is passed over; one that answers must give the values and the
gradients of the reference. Keys that no query sees hold NaN.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

import querykey as qk

BACKENDS = ("sdpa", "chunked", "auto")
SIZES = st.sampled_from([1, 2, 3, 5, 8, 13, 17, 33, 66])


@dataclass
class Call:
    """One drawn call: the arrays and the options of `attend`."""

    arrays: dict[str, torch.Tensor]
    options: dict[str, Any] = field(default_factory=dict)


@st.composite
def rules(draw: Any, batch: tuple[int, ...], heads: int, queries: int, keys: int) -> Any:
    """Draw a mask of one to three rules, some of them negated."""
    small = st.integers(1, 9)

    def bits(*shape: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
        return torch.rand(shape, generator=generator) < draw(st.sampled_from([0.2, 0.7, 1.0]))

    made = {
        "causal": lambda: qk.Causal(),
        "window": lambda: qk.Window(draw(small)),
        "dilated": lambda: qk.Dilated(draw(small), draw(small)),
        "strided": lambda: qk.Strided(draw(small)),
        "global": lambda: qk.Global(draw(small)),
        "blocks": lambda: qk.Blocks(draw(small)),
        "prefix": lambda: qk.Prefix(draw(small)),
        "padding": lambda: qk.Padding(bits(*batch, keys)),
        "documents": lambda: qk.Documents(bits(*batch, keys).long().cumsum(-1)),
        "dense": lambda: qk.Dense(bits(queries, keys)),
        "dense per head": lambda: qk.Dense(bits(*batch, heads, queries, keys)),
    }
    mask: Any = draw(st.sampled_from([qk.FULL, qk.Causal(), None]))
    for _ in range(draw(st.integers(0 if mask is not None else 1, 2))):
        rule = made[draw(st.sampled_from(sorted(made)))]()
        rule = ~rule if draw(st.integers(0, 5)) == 0 else rule
        join = draw(st.sampled_from(["and", "and", "or"]))
        mask = rule if mask is None else mask & rule if join == "and" else mask | rule
    return mask


@st.composite
def calls(draw: Any) -> Call:
    """Draw a call."""
    batch = tuple(draw(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=2)))
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    heads = kv_heads * draw(st.sampled_from([1, 1, 2, 3]))
    queries = draw(SIZES)
    keys = draw(st.one_of(st.just(queries), SIZES))
    key_dim, value_dim = draw(st.sampled_from([1, 3, 4, 8])), draw(st.sampled_from([1, 4, 5]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    arrays = {
        "q": normal(*batch, heads, queries, key_dim),
        "k": normal(*batch, kv_heads, keys, key_dim),
        "v": normal(*batch, kv_heads, keys, value_dim),
    }
    options: dict[str, Any] = {"mask": draw(rules(batch, heads, queries, keys))}
    if queries != keys or draw(st.booleans()):
        each = torch.randint(0, max(keys - queries, 0) + 3, batch, generator=generator)
        options["start"] = draw(st.sampled_from([max(keys - queries, 0), 0, 2, each]))
    if draw(st.booleans()):
        features = draw(
            st.sampled_from(
                [qk.Quadratic(), qk.EluPlusOne(), qk.Polynomial(2, 0.5), qk.Polynomial(4),
                 qk.Taylor(2), qk.RandomFeatures(8)]
            )
        )  # fmt: skip
        options["mechanism"] = qk.Kernel(features, draw(st.sampled_from([1.0, 0.3])))
        if draw(st.booleans()):
            arrays["decay"] = -normal(*batch, kv_heads, keys).abs() * draw(
                st.sampled_from([0.0, 0.1, 3.0, 40.0])
            )
            only = [leaf for leaf in (options["mask"],) if isinstance(leaf, qk.Causal)]
            hidden = torch.rand((*batch, keys), generator=generator) < 0.7
            plain = draw(st.sampled_from([qk.Causal(), qk.Causal() & qk.Padding(hidden)]))
            options["mask"] = only[0] if only else plain
    else:
        scale = draw(st.sampled_from([None, 1.0, 0.0, -0.5, 3.0]))
        options["mechanism"] = qk.Softmax(scale, draw(st.sampled_from([None, None, 2.0])))
        bias = draw(st.sampled_from(["none", "none", "alibi", "buckets", "array"]))
        if bias == "alibi":
            options["bias"] = qk.ALiBi(heads)
        elif bias == "buckets":
            options["bias"] = qk.Buckets(normal(8, heads))
        elif bias == "array":
            options["bias"] = normal(queries, keys)
    return Call(arrays, options)


def answers(call: Call, backend: str, poison: bool) -> list[torch.Tensor] | None:
    """Return the output and all gradients through one backend, None where it refuses."""
    arrays = {name: x.clone() for name, x in call.arrays.items()}
    if poison:
        mask, start = call.options["mask"], call.options.get("start", 0)
        seen = mask.matrix(arrays["q"].shape[-2], arrays["k"].shape[-2], start, like=arrays["q"])
        unseen = ~seen.any(-2)  # of the keys, for every head where the mask has heads
        if unseen.ndim > 1:
            unseen = unseen.all(-2) if unseen.ndim == arrays["k"].ndim - 1 else unseen
            shape = (*arrays["k"].shape[:-3], 1, arrays["k"].shape[-2])
            unseen = unseen.unsqueeze(-2).expand(shape)
        unseen = unseen.expand(arrays["k"].shape[:-1])
        arrays["k"][unseen] = arrays["v"][unseen] = math.nan
    leaves = [x.requires_grad_() for x in arrays.values()]
    try:
        out = qk.attend(**arrays, **call.options, backend=backend)
    except qk.QuerykeyError:
        return None
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    grads = torch.autograd.grad(out, leaves, weight, allow_unused=True)
    zeros = (torch.zeros_like(x) if g is None else g for g, x in zip(grads, leaves, strict=True))
    return [out.detach(), *zeros]


def what_is_left(call: Call) -> torch.Tensor:
    """Return how much of each similarity the gates between key and query leave."""
    q, decay, mask = call.arrays["q"], call.arrays.get("decay"), call.options["mask"]
    if decay is None:
        return torch.ones(1, dtype=q.dtype)
    for part in mask.parts if mask != qk.Causal() else ():
        if isinstance(part, qk.Padding):
            decay = decay * part.real.unsqueeze(-2)
    so_far = decay.repeat_interleave(q.shape[-3] // decay.shape[-2], -2).cumsum(-1)
    start = torch.as_tensor(call.options.get("start", 0)).expand(decay.shape[:-2])
    place = (start[..., None, None] + torch.arange(q.shape[-2])).clamp(max=decay.shape[-1] - 1)
    at = so_far.gather(-1, place.expand(*so_far.shape[:-1], -1))
    return (at[..., :, None] - so_far[..., None, :]).clamp(max=0.0).exp()


def rounding(call: Call) -> float:
    """Return how far sums of features may round, relative to the answer.

    Where a polynomial of q.k is near 0 for all keys that a query sees, it is a small difference of
    large products of features, and the answer and its gradients divide by it.
    """
    mechanism = call.options.get("mechanism")
    if not isinstance(mechanism, qk.Kernel) or not mechanism.features.closed_form:
        return 0.0
    q, k = call.arrays["q"], call.arrays["k"]
    k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    start = call.options.get("start", 0)
    seen = call.options["mask"].matrix(q.shape[-2], k.shape[-2], start, like=q)
    if seen.ndim == q.ndim - 1 and seen.ndim > 2:
        seen = seen.unsqueeze(-3)
    left = seen * what_is_left(call)
    near = (left * mechanism.similarity(q, k)).sum(-1)
    far = (left * mechanism.similarity(q.abs(), k.abs())).sum(-1)
    lost = (far / near).nan_to_num(1.0).abs().max() if near.numel() else torch.ones(())
    return float(torch.finfo(torch.float64).eps * lost**2)


def differences(call: Call, counts: Counter[str] | None = None) -> list[str]:
    """Return where a backend that serves a call differs from the reference."""
    counts = Counter() if counts is None else counts
    counts["drawn"] += 1
    wanted = answers(call, "reference", poison=False)
    if wanted is None:
        return []
    counts["served by the reference"] += 1
    found = []
    for backend in BACKENDS:
        got = answers(call, backend, poison=True)
        if got is None:
            continue
        counts[backend] += 1
        for name, a, b in zip(("the output", *call.arrays), got, wanted, strict=True):
            # Sums of the gradient cancel: what counts is the size of what is summed.
            scale = max(float(x.abs().max()) if x.numel() else 0.0 for x in wanted)
            limit = (1e-9 + rounding(call)) * max(scale, 1)
            if a.shape != b.shape or not bool(((a - b).abs() <= limit).all()):
                error = float((a - b).abs().max()) if a.shape == b.shape else math.nan
                found.append(f"{backend}: {name} differs by {error:.1e} of {scale:.1e}")
    return found


def run(first: int, seconds: float, examples: int, counts: Counter[str]) -> None:
    """Draw calls for so long, `examples` from each seed on; raise where answers differ."""
    end = time.monotonic() + seconds
    for number in itertools.count(first):

        @seed(number)
        @settings(
            max_examples=examples, deadline=None, database=None,
            suppress_health_check=list(HealthCheck), print_blob=True,
        )  # fmt: skip
        @given(calls())
        def agree(call: Call) -> None:
            found = differences(call, counts)
            assert not found, (
                f"{found}: {call.options}, { {n: x.shape for n, x in call.arrays.items()} }"
            )

        agree()
        if time.monotonic() > end:
            return


def main() -> None:
    """Compare for so many seconds and print how many calls there were."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    chosen = parser.parse_args()
    counts: Counter[str] = Counter()
    print(f"seed {chosen.seed}", flush=True)
    try:
        run(chosen.seed, chosen.seconds, 200, counts)
    finally:
        print(dict(counts), flush=True)


if __name__ == "__main__":
    main()
