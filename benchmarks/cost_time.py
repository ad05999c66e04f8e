"""Predicted and measured seconds of models that the calibration has not seen.

python benchmarks/cost_time.py                 # calibrate this device first, for at most 60 s
python benchmarks/cost_time.py --count 6       # fewer configurations

The configurations are drawn from RANGES by SEED, before anything is measured: three families, a
forward pass without gradients and a training step (forward and backward) of each. Every model is
timed in rounds, all models one after the other, and its best time counts. On a CPU with one thread
these are seconds of the processor, which other work on the machine lengthens little.
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
import transformers

import querykey as qk
from querykey.costs import calibrate, clock_of
from querykey.show import print_table

SEED = 22  # another one than the 21 with which the method was worked out
FAMILIES = ("gpt2", "llama", "bert")
RANGES = {"width": (64, 512), "layers": (1, 6), "length": (16, 256), "batch": (1, 4)}
VOCABULARY = 2000
ROUNDS = 4


def drawn(count, seed):
    """The configurations: sizes drawn evenly by their logarithm, the width in steps of 64."""
    numbers = random.Random(seed)

    def between(name):
        low, high = RANGES[name]
        return round(low * (high / low) ** numbers.random())

    rows = []
    for place in range(count):
        row = {"family": FAMILIES[place % 3], **{name: between(name) for name in RANGES}}
        row["width"] = max(64, row["width"] // 64 * 64)
        rows.append(row)
    return rows


def model_of(row):
    width, layers = row["width"], row["layers"]
    heads, common = width // 32, {"vocab_size": VOCABULARY}
    if row["family"] == "gpt2":
        config = transformers.GPT2Config(
            n_embd=width, n_layer=layers, n_head=heads, n_positions=512, bos_token_id=0,
            eos_token_id=0, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0, use_cache=False,
            **common,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(config)
    if row["family"] == "llama":
        config = transformers.LlamaConfig(
            hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
            num_key_value_heads=heads // 2, intermediate_size=3 * width, use_cache=False, **common,
        )  # fmt: skip
        return transformers.LlamaForCausalLM(config)
    config = transformers.BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * width, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        **common,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config)


def measured(rows, device):
    """The best seconds of every configuration, forward and step, over interleaved rounds."""
    clock = clock_of(device)
    best = [(float("inf"), float("inf"))] * len(rows)
    for _ in range(ROUNDS):
        for place, row in enumerate(rows):
            torch.manual_seed(0)
            model = model_of(row).to(device)
            ids = torch.randint(0, VOCABULARY, (row["batch"], row["length"]), device=device)
            pair = (spent(model, ids, clock, False), spent(model, ids, clock, True))
            best[place] = tuple(map(min, best[place], pair))
    return best


def spent(model, ids, clock, train):
    """Seconds of the second and third run, the better of both."""
    seconds = []
    for _ in range(3):
        model.zero_grad()
        gradient = torch.ones(*ids.shape, VOCABULARY, device=ids.device)
        with torch.set_grad_enabled(train):
            began = clock()
            out = model(ids).logits
            if train:
                out.backward(gradient)
            seconds.append(clock() - began)
    return min(seconds[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    rows = drawn(options.count, options.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        found = calibrate(options.seconds, device, Path(folder) / "calibration.json")
    calibrated = time.perf_counter() - began
    for row in rows:
        report = qk.cost(model_of(row), qk.tokens("batch", "seq"))
        predicted = report.predict(found, batch=row["batch"], seq=row["length"])
        row["predicted"] = (predicted.forward, predicted.step)
    for row, seconds in zip(rows, measured(rows, device), strict=True):
        row["measured"] = seconds
        row["error"] = [p / m - 1 for p, m in zip(row["predicted"], seconds, strict=True)]
    columns = (
        "family",
        *RANGES,
        "forward ms",
        "predicted",
        "error",
        "step ms",
        "predicted",
        "error",
    )
    print_table(columns, [[row["family"], *(row[n] for n in RANGES), *cells(row)] for row in rows])
    result = {"benchmark": "cost_time", "seed": options.seed, "ranges": RANGES, "rows": rows}
    for place, name in enumerate(("forward", "step")):
        errors = [abs(row["error"][place]) for row in rows]
        result[name] = {"median": statistics.median(errors), "worst": max(errors)}
        print(f"{name}: median error {result[name]['median']:.1%}, worst {max(errors):.1%}")
    result |= {"calibrated_s": calibrated, "stated_error": found.error, "processor": found.name}
    result |= {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "load": os.getloadavg(),
    }
    print(json.dumps({**result, "python": platform.python_version()}))


def cells(row):
    both = zip(row["measured"], row["predicted"], row["error"], strict=True)
    return [cell for m, p, e in both for cell in (f"{1e3 * m:.2f}", f"{1e3 * p:.2f}", f"{e:+.0%}")]


if __name__ == "__main__":
    main()
