"""Who takes part in benchmarks/gpu.py, each with its equation; and how one call is timed."""

from __future__ import annotations

import functools
import importlib
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from querykey.attention.features import Quadratic
from querykey.attention.mechanisms import Kernel
from querykey.backends.chunked import linear
from querykey.backends.triton import linear as on_gpu

HEADS = 16
SIZES = (64, 32, 16, 128)
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
CHUNKS = (512, 1024, 2048)  # of which retention gets its best


def run_triton(q, k, v):
    return on_gpu.attend(q, k, v, Kernel(Quadratic(), q.shape[-1] ** -0.5), causal=True)


@functools.cache
def gates(heads: int, tokens: int) -> torch.Tensor:
    """Return logarithms of gates, the same for every call of these sizes."""
    made = torch.Generator("cuda").manual_seed(0)
    drawn = torch.randn(1, heads, tokens, device="cuda", generator=made)
    return torch.nn.functional.logsigmoid(drawn + 4).requires_grad_()


def run_gated(q, k, v):
    kernel = Kernel(Quadratic(), q.shape[-1] ** -0.5)
    return on_gpu.attend(q, k, v, kernel, causal=True, decay=gates(*k.shape[1:3]))


def plain_gated(q, k, v):
    total = gates(*k.shape[1:3]).detach().double().cumsum(-1)
    left = (total[..., :, None] - total[..., None, :]).clamp(max=0).exp()
    w = ((q @ k.mT * q.shape[-1] ** -0.5 + 1) ** 2 * left).tril()
    return w @ v / w.sum(-1, keepdim=True)


def run_chunked(q, k, v):
    return linear.attend(q, k, v, Kernel(Quadratic(), q.shape[-1] ** -0.5), causal=True)


def run_cudnn(q, k, v):
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return scaled_dot_product_attention(q, k, v, is_causal=True)


def run_flash(q, k, v):
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return scaled_dot_product_attention(q, k, v, is_causal=True)


def plain_kernel(q, k, v):
    w = ((q @ k.mT * q.shape[-1] ** -0.5 + 1) ** 2).tril()
    return w @ v / w.sum(-1, keepdim=True)


def plain_softmax(q, k, v):
    hidden = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v


def plain_power(q, k, v):
    w = ((q @ k.mT * q.shape[-1] ** -0.5) ** 2).tril()
    return w @ v / w.sum(-1, keepdim=True)


def plain_taylor(q, k, v):
    d = q @ k.mT * q.shape[-1] ** -0.5
    w = (1 + d + d * d / 2).tril()
    return w @ v / w.sum(-1, keepdim=True)


@dataclass(frozen=True)
class Contender:
    """A way to attend, its equation, and where it is timed."""

    attend: Callable
    plain: Callable
    longest: int = LENGTHS[-1]
    sizes: tuple[int, ...] = SIZES
    tokens_first: bool = False  # takes (batch, tokens, heads, size)
    peer: bool = False  # not ours and not torch's: left out if it does not work here


def flex() -> Contender:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    fused, masks = torch.compile(flex_attention, dynamic=True), {}

    def run_flex(q, k, v):
        tokens = q.shape[-2]
        if tokens not in masks:
            masks[tokens] = create_block_mask(
                lambda b, h, i, j: i >= j, None, None, tokens, tokens, device="cuda"
            )
        return fused(q, k, v, block_mask=masks[tokens])

    return Contender(run_flex, plain_softmax, 32768, (64,), peer=True)


def retention() -> Contender:
    """Take the chunk that is fastest with backward at 32768 tokens."""
    attend = importlib.import_module("retention").power_retention

    def with_chunk(chunk: int) -> Callable:
        return lambda q, k, v: attend(q, k, v, deg=2, chunk_size=chunk)

    *x, g = (t.transpose(1, 2).contiguous() for t in draw(64, 32768))
    leaves = [t.requires_grad_() for t in x]
    times = {c: milliseconds(lambda c=c: with_chunk(c)(*leaves).backward(g), 5) for c in CHUNKS}
    best = min(times, key=lambda chunk: times[chunk])
    print(f"retention with backward by chunk at 32768 tokens, ms: {times}")
    return Contender(with_chunk(best), plain_power, sizes=(64,), tokens_first=True, peer=True)


def fla() -> Contender:
    attend = importlib.import_module("fla.ops.based").parallel_based
    return Contender(attend, plain_taylor, 32768, (64,), tokens_first=True, peer=True)


CONTENDERS = {
    "triton": Contender(run_triton, plain_kernel),
    "gates": Contender(run_gated, plain_gated, sizes=(64, 128)),
    "cudnn": Contender(run_cudnn, plain_softmax),
    "flash": Contender(run_flash, plain_softmax, sizes=(64,)),
    "chunked": Contender(run_chunked, plain_kernel, 8192, (64,)),  # made for CPUs
}
PEERS = {"flex": flex, "retention": retention, "fla": fla}


def gather() -> tuple[dict[str, Contender], dict[str, str]]:
    """Return all contenders that work here, and why the other peers do not."""
    there, absent = dict(CONTENDERS), {}
    for name, make in PEERS.items():
        try:
            there[name] = make()
        except Exception as error:  # anything can go wrong in code made for other versions
            absent[name] = f"{type(error).__name__}: {error}"[:200]
    return there, absent


def draw(size: int, tokens: int, heads: int = HEADS) -> list[torch.Tensor]:
    shape = (1, heads, tokens, size)
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)]


def milliseconds(call: Callable, runs: int, before: Callable = lambda: None) -> float:
    """Return the GPU's median time for a call, `before` being done untimed each time."""
    return interleaved({"": call}, runs, before)[""]


def interleaved(
    calls: dict[str, Callable], runs: int, before: Callable = lambda: None
) -> dict[str, float]:
    """Return the median time of each, one run of every call after the other."""
    for call in calls.values():
        for _ in range(3):
            call()
    events: dict[str, list] = {name: [] for name in calls}
    for _ in range(runs):
        for name, call in calls.items():
            before()
            pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            pair[0].record()
            call()
            pair[1].record()
            events[name].append(pair)
    torch.cuda.synchronize()
    return {
        name: statistics.median(start.elapsed_time(end) for start, end in pairs)
        for name, pairs in events.items()
    }
