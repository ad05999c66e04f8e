"""Runs states on the GPU kernels in Triton's interpreter, and prints how far they are off.

As `triton_driver`: needs TRITON_INTERPRET=1, in float32, the last line printed is JSON. Tokens come
in pieces; a piece of one goes through the kernel for one token, a longer one through the others.
The oracle never has a state: it takes every pair of a query and a real key up to it, in float64.
"""

import json
import warnings

import torch
from tests.backends.triton_driver import (
    POLYNOMIAL,
    QUADRATIC,
    SCALE,
    TAYLOR,
    draw_gates,
    left_of,
    poison,
)

from querykey.attention import empty_state, recur
from querykey.attention.features import Polynomial
from querykey.attention.mechanisms import Kernel
from querykey.backends import triton
from querykey.backends.triton import plans

BARE = (Polynomial(2, bias=0.0), lambda d: d**2)
GPU, EQUATION = triton.recur, recur
GATED = "one by one", "a prompt, then tokens", "ragged rows"  # run with a gate at every token too
# Map, batch, heads, key heads, key and value size, pieces, whether some tokens are not real.
CASES = {
    "one by one": (QUADRATIC, 2, 2, 2, 5, 3, (1, 1, 1, 1), False),
    "groups, wide values": (TAYLOR, 1, 6, 2, 4, 19, (1, 1, 1), False),
    "no lower degrees": (BARE, 1, 2, 1, 7, 4, (1, 1, 40, 1), False),
    "a prompt, then tokens": (QUADRATIC, 2, 2, 1, 16, 16, (70, 1, 1), False),
    "prompts in pieces": (POLYNOMIAL, 1, 2, 2, 13, 5, (33, 32, 2, 1, 65, 1), False),
    "ragged rows": (TAYLOR, 3, 2, 1, 6, 18, (40, 1, 9, 1, 1), True),
}


def draw(case, seed=0):
    (features, similarity), batch, heads, kv_heads, key_dim, value_dim, pieces, ragged = case
    made = torch.Generator().manual_seed(seed)
    tokens = sum(pieces)
    shapes = [(heads, tokens, key_dim), (kv_heads, tokens, key_dim), (kv_heads, tokens, value_dim)]
    q, k, v = (torch.randn(batch, *shape, generator=made) for shape in shapes)
    real = torch.rand(batch, tokens, generator=made) > 0.3
    return Kernel(features, SCALE), similarity, (q, k, v), real | (not ragged)


def wanted(similarity, q, k, v, real, decay=None):
    """Return what every real query sees, and zeros for the others, one row after the other."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=torch.float64)
    for row, there in enumerate(real):
        qr, kr, vr = (x[row][:, there] for x in (q, k, v))
        w = similarity(SCALE * (qr @ kr.mT)).tril()
        if decay is not None:
            left = left_of(decay[row, :, there].double()[None], None)[0]
            w = w * left.repeat_interleave(len(w) // len(left), 0)
        out[row][:, there] = w @ vr / w.sum(-1, keepdim=True)
    return out


def begun(kernel, q, k, v):
    sizes = {"kv_heads": k.shape[1], "key_dim": k.shape[-1], "value_dim": v.shape[-1]}
    return empty_state(kernel, batch=len(q), like=q, **sizes)


def outputs(kernel, inputs, real, pieces, ways):
    """Return all outputs and the last state; the n-th piece goes the n-th of the ways, in turns.

    The inputs are q, k, v and, if there are gates, decay.
    """
    now, outs, first = begun(kernel, *inputs[:3]), [], 0
    for number, count in enumerate(pieces):
        at = slice(first, first + count)
        piece = (x[:, :, at] for x in inputs)
        there = None if bool(real.all()) else real[:, at]
        out, now = extend(*piece, now, there, way=ways[number % len(ways)])
        outs.append(out)
        first += count
    return torch.cat(outs, 2), now


def extend(q, k, v, *rest, way):
    """Take new tokens into the state, by one of the ways to do that; the rest as `outputs` says."""
    *decay, now, real = rest
    new = now.chunk(q, k, v, real, *decay)
    gates = () if new.decay is None else (new.decay,)
    out, *sums = way(now.kernel, new.q, new.k, new.v, *now.arrays, new.real_places(), *gates)
    return new.restore(out), now.after(new, *sums)


def error(found, true):
    return float((found - true).norm() / true.norm())


def run(case, ways=(GPU,), gated=False):
    kernel, similarity, inputs, real = draw(case)
    if gated:
        inputs = (*inputs, draw_gates(inputs[1]))
    found, _ = outputs(kernel, inputs, real, case[6], ways)
    return error(found, wanted(similarity, *inputs[:3], real, *inputs[3:]))


def sums(case):
    """The state after all tokens, against the one that the equation leaves."""
    kernel, _, inputs, real = draw(case)
    ours, theirs = (outputs(kernel, inputs, real, case[6], [w])[1].arrays for w in (GPU, EQUATION))
    return max(error(a, b) for a, b in zip(ours, theirs, strict=True))


def two_futures(pieces):
    """How much a state differs after it was extended, from what it was before."""
    kernel, _, inputs, real = draw((*CASES["one by one"][:6], (*pieces, 1), False))
    _, now = outputs(kernel, inputs, real, pieces, [GPU])
    before = [x.clone() for x in now.arrays]
    last = [x[:, :, -1:] for x in inputs]
    one = extend(*last, now, None, way=GPU)[0]
    extend(*(x + 1 for x in last), now, None, way=GPU)
    again = extend(*last, now, None, way=GPU)[0]
    kept = [error(a, b) for a, b in zip(now.arrays, before, strict=True)]
    return max(*kept, error(again, one))


def compiled():
    """One token through torch.compile as one graph, against the same without it."""
    kernel, _, (q, k, v), _ = draw(CASES["one by one"])
    sums = begun(kernel, q, k, v).arrays

    def step(q, k, v, outer, total):
        return triton.recur(kernel, q, k, v, outer, total, None)

    given = (q[:, :, :1], k[:, :, :1], v[:, :, :1], *sums)
    whole = torch.compile(step, fullgraph=True, backend="aot_eager")
    return max(error(a, b) for a, b in zip(whole(*given), step(*given), strict=True))


def main():
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    torch.Tensor.new_empty = poison(torch.Tensor.new_empty)
    torch.empty_like = poison(torch.empty_like)
    launch = plans.Launch(16, 16, 4, 1)
    for size in plans.SIZES:
        plans.PLANS[size] = plans.Plan(32, (40, 40), *[(launch, launch)] * 3)
    found = {name: run(case) for name, case in CASES.items()}
    found |= {f"{name}, gates": run(CASES[name], gated=True) for name in GATED}
    found["in turns, gates"] = run(CASES["prompts in pieces"], (GPU, EQUATION), gated=True)
    found["in turns with the equation"] = run(CASES["prompts in pieces"], (GPU, EQUATION))
    found["the sums themselves"] = max(sums(case) for case in CASES.values())
    found["an old state"] = max(two_futures((1,)), two_futures((40,)))
    found["compiled whole"] = compiled()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
