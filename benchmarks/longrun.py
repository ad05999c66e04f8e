"""A decoder of 100 M parameters at 65536 tokens of context: softmax against quadratic kernels.

    python benchmarks/longrun.py [--steps 200] [--tokens 65536] [--seconds 300] [--only softmax]
    python benchmarks/longrun.py --equal-time 600 --rates 3e-4 6e-4 1.2e-3 --only softmax decay

Everything but the mechanism is the same: seed, weights to begin with, text, optimizer. The text is
the source of Python's own standard library, byte by byte, a new window at every step. bfloat16
autocast, one sequence a step, no checkpoints of activations, no torch.compile; softmax over all
tokens runs by cuDNN's kernel, the fastest here. A time is that of a whole step, from the first to
the last kernel.

With --equal-time each mechanism trains for so many seconds, one after the other, on the sources of
all installed packages, of which one in twenty is kept for validation. The rate falls along a cosine
of the time that is gone. Before, each mechanism tries every rate of --rates for --tune seconds, and
takes the one with the lowest loss on the packages that were kept. Validating does not count as
time. The mechanisms: `decay` has a gate at every head and token, `decay-conv` also a causal
convolution of width 4 over queries, keys and values, and `turns` layers of softmax over a window of
128 in turn with layers of `decay`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from contextlib import ExitStack
from dataclasses import replace

import torch
from longrun_text import Text, packages, standard_library
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import conv1d, cross_entropy, pad

import querykey as qk
from querykey.models import presets
from querykey.show.table import print_table

WARMUP, RATE, LEAST = 20, 6e-4, 0.1  # steps; the peak; the share of it that is left at last
WINDOW, TAPS = 128, 4
VALIDATIONS = 20  # in the time of a run, and windows of text in each
WINDOWS = 4
MECHANISMS = ("quadratic", "softmax", "decay", "decay-conv", "turns")


class Convolved(nn.Module):
    """A projection whose features are then mixed with those of the last tokens, each by itself."""

    def __init__(self, projection: nn.Linear):
        super().__init__()
        self.projection = projection
        features = projection.out_features
        self.taps = nn.Parameter(torch.zeros(features, 1, TAPS))
        with torch.no_grad():
            self.taps[..., -1] = 1  # at first as without

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of x (batch, tokens, width), mixed."""
        y = pad(self.projection(x).mT, (TAPS - 1, 0))
        return conv1d(y, self.taps.to(y.dtype), groups=len(self.taps)).mT


def decoder(name: str, width: int, layers: int, heads: int) -> nn.Module:
    """Return a decoder of bytes with one of the mechanisms."""
    sizes = (width, layers, heads, 256)
    quadratic = qk.Kernel(qk.Quadratic(), (width // heads) ** -0.5)
    if name == "softmax":
        return qk.models.Decoder(presets.mechanism(qk.Softmax(), *sizes))
    if name == "quadratic":
        return qk.models.Decoder(presets.mechanism(quadratic, *sizes))
    model = qk.models.Decoder(presets.decaying(quadratic, *sizes))
    if name == "decay-conv":
        for block in model.stack.layers:
            attention = block.attention
            for part in ("q", "k", "v"):
                setattr(attention, part, Convolved(getattr(attention, part)))
    if name == "turns":
        config = replace(presets.mechanism(qk.Softmax(), *sizes), windows=WINDOW)
        near = qk.models.Decoder(config)
        for i in range(0, layers, 2):
            model.stack.layers[i] = near.stack.layers[i]
    return model


class Clock:
    """Seconds of training, by the host's clock, without those of validating."""

    def __init__(self, device: str):
        self.device, self.spent = device, 0.0
        self.start()

    def start(self) -> None:
        """Begin to count."""
        self._wait()
        self._begun = time.perf_counter()

    def stop(self) -> None:
        """Leave out what follows."""
        self._wait()
        self.spent += time.perf_counter() - self._begun

    def read(self) -> float:
        """Return the seconds so far, those of kernels that are still to run left out."""
        return self.spent + time.perf_counter() - self._begun

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def low_precision(name: str, device: str) -> ExitStack:
    """Return the context in which a step is computed."""
    stack = ExitStack()
    if device == "cuda":
        stack.enter_context(torch.autocast("cuda", torch.bfloat16))
        if name == "softmax":
            stack.enter_context(sdpa_kernel(SDPBackend.CUDNN_ATTENTION))
    return stack


@torch.no_grad()
def validated(name: str, model: nn.Module, text: Tensor, tokens: int, device: str) -> float:
    """Return the mean loss over the same windows of text every time."""
    losses = []
    for at in torch.linspace(0, len(text) - tokens - 1, WINDOWS).long().tolist():
        ids = text[at : at + tokens + 1].to(device).long()
        with low_precision(name, device):
            losses.append(cross_entropy(model(ids[None, :-1])[0].float(), ids[1:]).item())
    return statistics.mean(losses)


def train(name: str, text: Text, rate: float, args: argparse.Namespace, seconds: float) -> dict:
    """Train one decoder, until the steps or the seconds are over."""
    torch.manual_seed(0)
    model = decoder(name, args.width, args.layers, args.heads).to(args.device)
    on_gpu = args.device == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), fused=on_gpu)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    losses, times, checks = [], [], []
    clock, data = Clock(args.device), text.training
    while len(losses) < args.steps and (spent := clock.read()) < seconds:
        at = len(losses) * args.tokens % (len(data) - args.tokens)
        ids = data[at : at + args.tokens + 1].to(args.device).long()
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (len(losses) + 1) / WARMUP)
            if args.equal_time:
                gone = math.cos(math.pi * min(spent / seconds, 1.0))
                group["lr"] *= LEAST + (1 - LEAST) * (1 + gone) / 2
        with low_precision(name, args.device):
            loss = cross_entropy(model(ids[None, :-1])[0].float(), ids[1:])
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())  # waits for the device
        times.append(1e3 * (clock.read() - spent))
        if len(losses) % 20 == 1:
            print(f"{name} step {len(losses)} loss {losses[-1]:.3f} {times[-1]:.0f} ms", flush=True)
        if text.validation is not None and clock.read() > seconds * len(checks) / VALIDATIONS:
            clock.stop()
            found = validated(name, model, text.validation, args.tokens, args.device)
            checks.append([round(clock.spent, 2), len(losses), round(found, 4)])
            clock.start()
    clock.stop()
    if text.validation is not None:
        found = validated(name, model, text.validation, args.tokens, args.device)
        checks.append([round(clock.spent, 2), len(losses), round(found, 4)])
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "rate": rate,
        "steps": len(losses),
        "seconds": clock.spent,
        "ms a step": statistics.median(times[2:] or times),
        "peak GiB": torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0,
        "losses": [round(x, 4) for x in losses],
        "validation (seconds, steps, loss)": checks,
    }


def compared(args: argparse.Namespace) -> tuple[dict[str, dict], int]:
    """Return the run of every mechanism, and how many bytes there were to train on."""
    most = args.bytes or args.steps * args.tokens + 1
    text = packages(most) if args.equal_time else standard_library(most)
    runs = {}
    for name in args.only:
        rate, tried = args.rates[0], {}
        if args.equal_time and len(args.rates) > 1:
            for candidate in args.rates:
                run = train(name, text, candidate, args, args.tune)
                tried[candidate] = run["validation (seconds, steps, loss)"][-1][2]
            rate = min(tried, key=lambda candidate: tried[candidate])
        runs[name] = train(name, text, rate, args, args.equal_time or args.seconds)
        runs[name]["loss by rate, tuned"] = tried
        if args.device == "cuda":
            torch.cuda.empty_cache()
    return runs, len(text.training)


def report(runs: dict[str, dict], equal_time: bool) -> None:
    """Print a line for every run."""
    rows, most = [], max(run["steps"] for run in runs.values())
    marks = [s for s in (1, 10, 25, 50, 100, 150, 200) if s <= most and not equal_time]
    for name, run in runs.items():
        near = [run["losses"][max(0, s - 5) : s] for s in marks if s <= run["steps"]]
        means = [round(statistics.mean(some), 3) for some in near]
        if equal_time:
            means = [run["rate"], run["validation (seconds, steps, loss)"][-1][2]]
        rows.append(
            [name, run["steps"], round(run["ms a step"]), round(run["peak GiB"], 1), *means]
        )
    heads = ["rate", "validation loss"] if equal_time else [f"loss at {s}" for s in marks]
    print_table(["mechanism", "steps", "ms a step", "peak GiB", *heads], rows)


def arguments() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, help="at most; 200 where times are not to be equal")
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--seconds", type=float, default=300, help="at most, for each mechanism")
    parser.add_argument("--equal-time", type=float, help="seconds that each mechanism trains for")
    parser.add_argument("--rates", type=float, nargs="+", default=[RATE])
    parser.add_argument("--tune", type=float, default=120, help="seconds for each rate before")
    parser.add_argument("--only", choices=MECHANISMS, nargs="+", default=MECHANISMS[:2])
    parser.add_argument("--bytes", type=int, help="of text, at most")
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=14)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args()
    if args.steps is None:
        args.steps = 10**6 if args.equal_time else 200
    if args.equal_time and args.bytes is None:
        args.bytes = 400_000_000
    return args


def main() -> None:
    args = arguments()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("nothing was timed: this needs a CUDA device")
        return
    runs, size = compared(args)
    report(runs, bool(args.equal_time))
    machine = {"torch": torch.__version__}
    if args.device == "cuda":
        machine["device"] = torch.cuda.get_device_name()
    print(json.dumps({"machine": machine, "bytes of text": size, "runs": runs}))


if __name__ == "__main__":
    main()
