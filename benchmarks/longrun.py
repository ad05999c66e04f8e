"""A decoder of 100 M parameters at 65536 tokens of context: softmax against a quadratic kernel.

    python benchmarks/longrun.py [--steps 200] [--tokens 65536] [--seconds 300] [--only softmax]

Everything but the mechanism is the same: seed, weights to begin with, text, optimizer. The text is
the source of Python's own standard library, byte by byte, a new window at every step. bfloat16
autocast, one sequence a step, no checkpoints of activations, no torch.compile; softmax runs by
cuDNN's kernel, the fastest here. A time is that of a whole step, from the first to the last kernel.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sysconfig
import time
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

import querykey as qk
from querykey.models import presets
from querykey.show.table import print_table

WIDTH, LAYERS, HEADS = 768, 14, 12
WARMUP, RATE = 20, 6e-4
MECHANISMS = {
    "quadratic": qk.Kernel(qk.Quadratic(), (WIDTH // HEADS) ** -0.5),
    "softmax": qk.Softmax(),
}


def text(most: int) -> torch.Tensor:
    """Return up to so many bytes of Python's standard library, file after file by name."""
    folder, found, size = Path(sysconfig.get_paths()["stdlib"]), [], 0
    for file in sorted(folder.rglob("*.py")):
        if "site-packages" not in file.parts and "test" not in file.parts and size < most:
            found.append(file.read_bytes())
            size += len(found[-1])
    return torch.frombuffer(bytearray(b"".join(found)[:most]), dtype=torch.uint8).long()


def train(name: str, data: torch.Tensor, steps: int, tokens: int, seconds: float) -> dict:
    """Train one decoder; fewer steps than asked for if it takes longer than it may."""
    torch.manual_seed(0)
    config = presets.mechanism(MECHANISMS[name], WIDTH, LAYERS, HEADS, vocabulary=256)
    model = qk.models.Decoder(config).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), fused=True)
    torch.cuda.reset_peak_memory_stats()
    losses, times, began = [], [], time.perf_counter()
    for step in range(steps):
        if time.perf_counter() - began > seconds:
            break
        at = step * tokens % (len(data) - tokens)
        ids, following = data[None, at : at + tokens], data[at + 1 : at + tokens + 1]
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / WARMUP)
        pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        pair[0].record()
        with torch.autocast("cuda", torch.bfloat16), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            loss = cross_entropy(model(ids)[0].float(), following)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        pair[1].record()
        losses.append(loss.item())
        times.append(pair[0].elapsed_time(pair[1]))
        if step % 20 == 0:
            print(f"{name} step {step} loss {losses[-1]:.3f} {times[-1]:.0f} ms", flush=True)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": len(losses),
        "ms a step": statistics.median(times[2:] or times),
        "peak GiB": torch.cuda.max_memory_allocated() / 2**30,
        "losses": [round(x, 4) for x in losses],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--seconds", type=float, default=300, help="at most, for each mechanism")
    parser.add_argument("--only", choices=MECHANISMS)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("nothing was timed: this needs a CUDA device")
        return
    data = text(args.steps * args.tokens + 1).cuda()
    found = {}
    for name in [args.only] if args.only else MECHANISMS:
        found[name] = train(name, data, args.steps, args.tokens, args.seconds)
        torch.cuda.empty_cache()
    marks = [s for s in (1, 10, 25, 50, 100, 150, 200) if s <= args.steps]
    rows = []
    for name, run in found.items():
        near = [run["losses"][max(0, s - 5) : s] for s in marks if s <= run["steps"]]
        means = [round(statistics.mean(some), 3) for some in near]
        rows.append(
            [name, run["steps"], round(run["ms a step"]), round(run["peak GiB"], 1), *means]
        )
    heads = [f"loss at {s}" for s in marks]
    print_table(["mechanism", "steps", "ms a step", "peak GiB", *heads], rows)
    machine = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    print(json.dumps({"machine": machine, "bytes of text": len(data), "runs": found}))


if __name__ == "__main__":
    main()
