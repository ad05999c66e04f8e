"""Decoding on a GPU: a quadratic kernel's constant state against a key-value cache.

    python benchmarks/decode.py [--quick]

16 heads of 64, bfloat16 tokens. Answers are compared with float64 first, and nothing is timed when
one is wrong. One token is a CUDA graph of several layers, each with memory of its own, so that none
is found in the cache because the last replay left it there; a time is the median over replays,
divided by the layers. The cache is read by torch's fused attention, the fastest of its kernels
that takes the call. Prefill is what `extend` takes for a prompt, state included.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import querykey as qk
from querykey.attention.decoding.state import State
from querykey.backends.triton import recur
from querykey.show.table import print_table

HEADS, SIZE = 16, 64
KERNEL = qk.Kernel(qk.Quadratic(), SIZE**-0.5)
FUSED = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)
BOUND = 5e-3


def draw(batch: int, tokens: int, heads: int = HEADS) -> list[torch.Tensor]:
    shape = (batch, heads, tokens, SIZE)
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(3)]


def empty(batch: int, heads: int = HEADS) -> State:
    like = torch.empty(0, device="cuda", dtype=torch.bfloat16)
    sizes = {"kv_heads": heads, "key_dim": SIZE, "value_dim": SIZE}
    return qk.empty_state(KERNEL, batch=batch, like=like, **sizes)


def check(tokens: int) -> float:
    """Stop unless a prompt and single tokens after it are near the equation in float64."""
    q, k, v = draw(2, tokens, heads=2)
    state, outs = empty(2, heads=2), []
    for at in (slice(0, tokens - 9), *(slice(t, t + 1) for t in range(tokens - 9, tokens))):
        out, state = qk.extend(*(x[:, :, at] for x in (q, k, v)), state)
        outs.append(out)
    w = ((q.double() @ k.double().mT * KERNEL.scale + 1) ** 2).tril()
    true = w @ v.double() / w.sum(-1, keepdim=True)
    found = torch.cat(outs, 2)
    errors = [float((a - b).norm() / b.norm()) for a, b in ((found, true),)]
    errors.append(float((found[:, :, -9:] - true[:, :, -9:]).norm() / true[:, :, -9:].norm()))
    if not max(errors) < BOUND:
        sys.exit(f"wrong at {tokens} tokens: relative errors {errors}")
    return max(errors)


def replayed(call: Callable, layers: int, runs: int) -> float:
    """Return the microseconds of one call; `call(layer)` is recorded once for each layer."""
    call(0)
    torch.cuda.synchronize()
    graph, kept = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        kept = [call(layer) for layer in range(layers)]
    times = []
    for turn in range(runs + 3):
        pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        pair[0].record()
        graph.replay()
        pair[1].record()
        torch.cuda.synchronize()
        if turn >= 3:
            times.append(pair[0].elapsed_time(pair[1]) * 1e3 / layers)
    del kept
    return statistics.median(times)


def state_time(batch: int, dtype: torch.dtype, filled: int = 0) -> dict:
    """Time one token into a state; of `filled` tokens, or of random numbers."""
    layers = 8 if batch < 8 else 2
    q, k, v = draw(batch, 1)
    state = empty(batch)
    if filled:
        _, state = qk.extend(*draw(batch, filled), state)
    sums = [
        [(x if filled else x.uniform_(1, 2)).to(dtype, copy=True) for x in state.arrays]
        for _ in range(layers)
    ]
    us = replayed(lambda i: recur(KERNEL, q, k, v, *sums[i], None), layers, 30)
    moved = 2 * sum(x.nbytes for x in sums[0])
    return {"us": us, "bytes": moved, "TB/s": moved / us / 1e6}


def cache_time(batch: int, tokens: int) -> dict:
    """Time one token's attention over a key-value cache, by the fastest of torch's kernels."""
    q = draw(batch, 1)[0]
    k, v = draw(batch, tokens)[:2]
    found = {}
    for backend in FUSED:
        # A kernel that does not take the call is not a contender.
        with contextlib.suppress(RuntimeError), sdpa_kernel(backend):
            us = replayed(lambda _: scaled_dot_product_attention(q, k, v), 1, 30)
            found[backend.name.lower()] = us
    name = min(found, key=lambda n: found[n])
    moved = k.nbytes + v.nbytes
    us = found[name]
    return {"us": us, "bytes": moved, "TB/s": moved / us / 1e6, "by": name, "all": found}


def prefill_time(tokens: int) -> float:
    """Return the milliseconds of a prompt into an empty state."""
    prompt, state, times = draw(1, tokens), empty(1), []
    for turn in range(10):
        pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        pair[0].record()
        with torch.no_grad():
            qk.extend(*prompt, state)
        pair[1].record()
        torch.cuda.synchronize()
        if turn >= 3:
            times.append(pair[0].elapsed_time(pair[1]))
    return statistics.median(times)


def copy_rate() -> float:
    """Return the TB/s of a large copy, read and written bytes counted."""
    source = torch.randn(2**30, device="cuda", dtype=torch.bfloat16)
    target, times = torch.empty_like(source), []
    for _ in range(20):
        pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        pair[0].record()
        target.copy_(source)
        pair[1].record()
        torch.cuda.synchronize()
        times.append(pair[0].elapsed_time(pair[1]))
    return 2 * source.nbytes / statistics.median(times) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="batch 1 only")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("nothing was timed: this needs a CUDA device")
        return
    errors = {tokens: check(tokens) for tokens in (300, 3001)}
    rate, rows, found = copy_rate(), [], {}
    for batch in (1,) if args.quick else (1, 8, 32):
        lines = {
            "state float32": state_time(batch, torch.float32),
            "state bfloat16": state_time(batch, torch.bfloat16),
        }
        for tokens in (1024, 8192, 32768, 131072):
            lines[f"cache of {tokens}"] = cache_time(batch, tokens)
        if batch == 1:
            for tokens in (1024, 131072):
                lines[f"state after {tokens}"] = state_time(1, torch.float32, tokens)
        ours = lines["state float32"]["us"]
        for name, line in lines.items():
            share = line["TB/s"] / rate
            shown = [batch, name, round(line["us"], 2), f"{share:.0%}", round(line["us"] / ours, 2)]
            rows.append([*shown, line.get("by", "")])
        found[batch] = lines
    prefill = {tokens: prefill_time(tokens) for tokens in (1024, 8192, 131072)}
    print_table(["batch", "memory", "us a token", "of the copy rate", "over ours", "by"], rows)
    print(f"copy {rate:.2f} TB/s; prefill ms {prefill}; relative errors {errors}")
    machine = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    print(json.dumps({"machine": machine, "copy TB/s": rate, "batches": found, "prefill": prefill}))


if __name__ == "__main__":
    main()
