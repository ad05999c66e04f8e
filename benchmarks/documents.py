"""Documents packed into one sequence on a GPU: our kernels against torch's softmax for the same.

    python benchmarks/documents.py [--tokens 32768]

Causal, bfloat16, batch 1, 16 heads of 64, documents of equal length. Ours is called as a user does:
it finds the documents in a tensor of ids once, which is timed apart; flex gets its block mask and
torch's `varlen_attn` its offsets beforehand. The plain causal call is timed beside the longest.
Answers are compared with float64 first, and a peer that does not work here is named and left out.
Contenders take turns; medians of CUDA events, as in gpu.py.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable

import torch
from gpu import BOUNDS, other_work, results
from gpu_peers import draw, interleaved, milliseconds, plain_kernel, plain_softmax, run_triton

import querykey as qk
from querykey.backends.triton.intervals import intervals
from querykey.show.table import print_table

LENGTHS = (128, 512, 2048, 8192, 32768)


def ours(ids: torch.Tensor) -> Callable:
    how = {
        "mechanism": qk.Kernel(qk.Quadratic(), 64**-0.5),
        "mask": qk.Causal() & qk.Documents(ids[None]),
    }
    return lambda q, k, v: qk.attend(q, k, v, **how, backend="triton")


def flex(ids: torch.Tensor) -> Callable:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def visible(b, h, i, j):
        return (i >= j) & (ids[i] == ids[j])

    fused = compiled(flex_attention)
    mask = create_block_mask(visible, None, None, len(ids), len(ids), device="cuda")
    return lambda q, k, v: fused(q, k, v, block_mask=mask)


compiled = functools.cache(torch.compile)


def varlen(ids: torch.Tensor) -> Callable:
    from torch.nn.attention.varlen import varlen_attn

    lengths = ids.bincount()
    ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
    most = int(lengths.max())

    def attend(q, k, v):
        q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))
        out = varlen_attn(q, k, v, ends, ends, most, most, window_size=(-1, 0))
        return out.transpose(0, 1)[None]

    return attend


CONTENDERS = {
    "triton": (ours, plain_kernel),
    "flex": (flex, plain_softmax),
    "varlen": (varlen, plain_softmax),
}


def checked(name: str, tokens: int = 2048, length: int = 384) -> None:
    """Compare with the equation, document by document, in float64."""
    make, plain = CONTENDERS[name]
    *x, g = draw(64, tokens, heads=2)
    ids = torch.arange(tokens, device="cuda") // length

    def apart(*x):
        pieces = zip(*(t.split(length, 2) for t in x), strict=True)
        return torch.cat([plain(*each) for each in pieces], 2)

    wanted = results(apart, [t.double() for t in x], g)
    found = results(make(ids), x, g)
    errors = [float((a - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True)]
    if not all(e < bound for e, bound in zip(errors, BOUNDS, strict=True)):
        raise ArithmeticError(f"{name}: errors {errors}")


def measure(names: list[str], tokens: int, length: int) -> dict:
    """Time every contender forward, and forward with backward, in turns."""
    *x, g = draw(64, tokens)
    leaves = [t.requires_grad_() for t in x]
    ids, calls = torch.arange(tokens, device="cuda") // length, {}
    attends = {name: CONTENDERS[name][0](ids) for name in names}
    if length == tokens:
        attends["plain"] = run_triton
    for name, attend in attends.items():

        def both(attend=attend):
            for t in leaves:
                t.grad = None
            attend(*leaves).backward(g)

        calls[f"{name} forward"] = lambda attend=attend: attend(*(t.detach() for t in leaves))
        calls[f"{name} both"] = both
    return {"tokens": tokens, "length": length} | interleaved(calls, 20, other_work())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=32768)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("nothing was timed: this needs a CUDA device")
        return
    absent, names = {}, []
    for name in CONTENDERS:
        try:
            checked(name)
            names.append(name)
        except Exception as error:
            if name == "triton":
                raise
            absent[name] = f"{type(error).__name__}: {error}"[:200]
            print(f"not timed: {name}, {absent[name]}")
    found = [measure(names, args.tokens, n) for n in LENGTHS if n <= args.tokens]
    ids = (torch.arange(args.tokens, device="cuda") // LENGTHS[0])[None]
    finding = milliseconds(lambda: intervals(ids, None, causal=True), 20, other_work())
    print_table(
        ["documents of", *(f"{name}, ms" for name in names)],
        [
            [r["length"], *(f"{r[f'{n} forward']:.3g} / {r[f'{n} both']:.3g}" for n in names)]
            for r in found
        ],
    )
    longest = found[-1]
    if "plain both" in longest:
        plain = f"{longest['plain forward']:.3g} / {longest['plain both']:.3g}"
        print(f"without documents, {args.tokens} tokens: {plain} ms")
    print(f"finding the documents in a tensor of ids: {finding:.3g} ms")
    machine = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    print(json.dumps({"machine": machine, "times": found, "finding": finding, "absent": absent}))


if __name__ == "__main__":
    main()
