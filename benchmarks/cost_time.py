"""Predicted and measured seconds of models that the calibration has not seen.

python benchmarks/cost_time.py                 # calibrate this device first, for at most 60 s
python benchmarks/cost_time.py --count 6       # fewer configurations
python benchmarks/cost_time.py --folder .      # keep the calibration and every time

The configurations are drawn from RANGES by SEED, before anything is measured: three families, a
forward pass without gradients and a training step (forward and backward) of each. Every model is
timed in rounds, and its best time counts. On a CPU with one thread these are seconds of the
processor, which other work on the machine lengthens little.
"""

import argparse
import json
import os
import platform
import random
import statistics
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from cost_models import VOCABULARY, Transformer

import querykey as qk
from querykey.costs import calibrate, clock_of
from querykey.costs.counting.passes import PassOptions
from querykey.costs.inputs import Inputs
from querykey.costs.measured_model import MeasuredModel
from querykey.costs.timing.bytes_moved import BytesMoved
from querykey.show import print_table

SEED = 26  # not one with which the method was worked out: 21 to 25
FAMILIES = ("gpt2", "llama", "bert")
# By device and dtype. On a GPU smaller models wait for Python, and not for the GPU.
RANGES = {
    "cpu": {
        "float32": {"width": (64, 512), "layers": (1, 6), "length": (16, 256), "batch": (1, 4)},
    },
    "cuda": {
        "bfloat16": {
            "width": (1536, 4096), "layers": (2, 8), "length": (256, 2048), "batch": (4, 32),
        },
        "float32": {
            "width": (512, 1536), "layers": (2, 8), "length": (256, 2048), "batch": (4, 32),
        },
    },
}  # fmt: skip
TOKENS = {"cpu": (16, 1024), "cuda": (4096, 16384)}  # of all rows; others are drawn again
ROUNDS = {"cpu": 4, "cuda": 1}
RUNS = {"cpu": 3, "cuda": 6}  # in a round, at least; the first does not count
LAST = {"cpu": 0.0, "cuda": 0.15}  # seconds of runs, at least: an idle GPU is slow at first
MOST_RUNS = 40


def drawn(count, seed, device):
    """The configurations: sizes drawn evenly by their logarithm, the width in steps of 64."""
    numbers = random.Random(seed)
    rows = []
    while len(rows) < count:
        dtype = numbers.choice([*RANGES[device]])
        sizes = {
            name: round(low * (high / low) ** numbers.random())
            for name, (low, high) in RANGES[device][dtype].items()
        }
        sizes["width"] = max(64, sizes["width"] // 64 * 64)
        low, high = TOKENS[device]
        if low <= sizes["length"] * sizes["batch"] <= high:
            rows.append({"family": FAMILIES[len(rows) % 3], **sizes, "dtype": dtype})
    return rows


def model_of(row, device):
    """A model on a device, or on meta without values; heads of 64 numbers, of 32 on a CPU."""
    heads = row["width"] // (32 if row["dtype"] == "float32" and row["width"] <= 512 else 64)
    with torch.device(device):
        model = Transformer(row["family"], row["width"], row["layers"], heads, row["vocabulary"])
    return model.to(getattr(torch, row["dtype"]))


def predicted(row, calibration):
    """What `report.predict` gives, without the formulas of the report, and the parts of it."""
    inputs = Inputs.of(qk.tokens("batch", "seq"))
    traffic = BytesMoved(MeasuredModel(model_of(row, "meta"), inputs, {}, {}), PassOptions())
    sizes = {"batch": row["batch"], "seq": row["length"]}
    found, parts = calibration.predict(traffic, sizes), calibration.parts(traffic, sizes)
    return (found.forward, found.step), [(part.work, part.starting) for part in parts]


def measured(rows, device):
    """All seconds of every configuration, forward and step, over interleaved rounds."""
    clock = clock_of(device)
    spent = [([], []) for _ in rows]
    for _ in range(ROUNDS[device]):
        for place, row in enumerate(rows):
            torch.manual_seed(0)
            model = model_of(row, device)
            ids = torch.randint(0, row["vocabulary"], (row["batch"], row["length"]), device=device)
            for train in (False, True):
                spent[place][train].extend(seconds(model, ids, clock, train, device))
    return spent


def seconds(model, ids, clock, train, device):
    """Seconds of the second run and those after it."""
    found = []
    weight = model.head.weight
    gradient = torch.randn(*ids.shape, len(weight), device=ids.device, dtype=weight.dtype)
    while len(found) < RUNS[device] or (sum(found) < LAST[device] and len(found) < MOST_RUNS):
        model.zero_grad()
        with torch.set_grad_enabled(train):
            began = clock()
            out = model(ids)
            if train:
                out.backward(gradient)
            found.append(clock() - began)
        del out
    return found[1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the calibration, at most")
    parser.add_argument("--folder", type=Path, help="keep the calibration and the rows here")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = drawn(options.count, options.seed, device)
    for row in rows:
        row["vocabulary"] = 2000 if device == "cpu" else VOCABULARY
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        file = (options.folder or Path(folder)) / "calibration.json"
        found = calibrate(options.seconds, device, file)
    calibrated = time.perf_counter() - began
    print(f"calibrated in {calibrated:.0f} s, factors {found.factors}, errors {found.errors}")
    for row in rows:
        row["predicted"], row["parts"] = predicted(row, found)
    for row, spent in zip(rows, measured(rows, device), strict=True):
        row["measured"], row["all"] = tuple(map(min, spent)), spent
        row["error"] = [p / m - 1 for p, m in zip(row["predicted"], row["measured"], strict=True)]
    names = ("family", "dtype", "width", "layers", "length", "batch")
    timed = ("ms", "predicted", "error")
    print_table(
        (*names, *(f"forward {timed[0]}", *timed[1:]), *(f"step {timed[0]}", *timed[1:])),
        [[*(row[name] for name in names), *cells(row)] for row in rows],
    )
    result = {"benchmark": "cost_time", "seed": options.seed, "ranges": RANGES[device]}
    for place, name in enumerate(("forward", "step")):
        errors = [abs(row["error"][place]) for row in rows]
        result[name] = {"median": statistics.median(errors), "worst": max(errors)}
        print(f"{name}: median error {result[name]['median']:.1%}, worst {max(errors):.1%}")
    result |= {"calibrated_s": calibrated, "stated_error": found.error, "processor": found.name}
    result |= {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "load": os.getloadavg(),
        "python": platform.python_version(),
    }
    if options.folder:
        (options.folder / "rows.json").write_text(json.dumps({**result, "rows": rows}))
    print(
        json.dumps({**result, "rows": [{n: v for n, v in r.items() if n != "all"} for r in rows]})
    )


def cells(row):
    both = zip(row["measured"], row["predicted"], row["error"], strict=True)
    return [cell for m, p, e in both for cell in (f"{1e3 * m:.2f}", f"{1e3 * p:.2f}", f"{e:+.0%}")]


if __name__ == "__main__":
    main()
