"""Steps per second of `querykey.train`, beside the same model in plain PyTorch and in transformers.

    python benchmarks/training.py [--size nano|10M|100M] [--device cuda] [--rounds 7] [--threads N]

`nano` is nanoGPT's published setting for a CPU, beside its model and loop written again; the first
20 losses of every contender that can be given the same batches must be equal to 1e-4 (in bfloat16
to 1e-2) before anything is timed. Then all take turns, and what counts is the median over rounds of
the ratio of one's time to another's. The share of the peak is the matrix products of a step (six
times weights times tokens, and attention counted full: Chowdhery et al., 2022) over the rate of one
large matrix product in the same precision, measured in every round. transformers' Trainer needs the
package accelerate (querykey[bench]). On a crowded machine `--clock cpu` counts the seconds of this
process in place of those of the clock; it wants one thread.
"""

import argparse
import json
import logging
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from learning_peers import PlainLoop, fresh_gpt

import querykey as qk
from querykey.train import read_config
from querykey.train.data.source import Data, Facts
from querykey.train.data.text import Windows
from querykey.train.folder import RunFolder
from querykey.train.loop import Trainer
from querykey.train.objectives.text import NextToken
from querykey.train.ranks import Ranks

SIZES = {  # layers, heads, width, length, vocabulary, batch
    "tiny": (1, 2, 32, 16, 65, 4),
    "nano": (4, 4, 128, 64, 65, 12),
    "10M": (6, 6, 384, 256, 256, 4),
    "100M": (12, 12, 768, 1024, 20480, 32),
}


def step_work(layers, heads, width, length, vocabulary, batch):
    """Return the FLOPs of the matrix products of a step, forward and backward."""
    weights = 12 * layers * width**2 + vocabulary * width
    return 6 * weights * length * batch + 12 * layers * width * length**2 * batch


def our_trainer(model, tokens, chosen, compile):
    batch, length = chosen.shape[5], chosen.shape[3]
    sections = {
        "folder": str(Path(tempfile.mkdtemp(), "run")),
        "optimizer": {"warmup": 100},
        "loop": {"batch": batch, "precision": chosen.precision, "compile": compile},
    }
    facts = Facts(chosen.shape[4], length)
    data = Data(Windows(tokens, length, 0), Windows(tokens[: 8 * length], length), facts)
    config, device = read_config(sections), torch.device(chosen.device)
    folder = RunFolder(Path(config.folder))
    return Trainer(config, model, NextToken(), data, folder, Ranks(), device)


def contenders(chosen):
    """Return each contender's step by name; a step takes a batch, or draws one, and has a loss."""
    layers, heads, width, length, vocabulary, batch = chosen.shape
    sizes = {"layers": layers, "heads": heads, "width": width}
    sizes |= {"length": length, "vocabulary": vocabulary}
    tokens = np.random.default_rng(0).integers(vocabulary, size=1 << 20).astype(np.uint16)
    tokens[1::2] = tokens[::2]  # half of them can be learned
    half, found, trainer = chosen.precision == "bfloat16", {}, None
    for compile, kind in ((False, "eager"), (True, "compiled")):
        if compile and chosen.no_compile:
            continue
        ours, plain = fresh_gpt(sizes)
        mine = our_trainer(ours, tokens, chosen, compile)
        trainer = trainer or mine
        plain = plain.to(chosen.device)
        loop = PlainLoop(plain, tokens, batch, length, compile, half)
        found[f"ours, {kind}"] = lambda rows=None, mine=mine: mine.advance().loss
        found[f"plain, {kind}"] = lambda rows=None, loop=loop: loop.step(*(rows or ()))
    return trainer, found, tokens


def first_losses(trainer, found, chosen, steps):
    """Return the first losses of every contender on the same batches, or say which one is off."""
    losses = {name: [] for name in found}
    for number in range(steps):
        batch = trainer.config.loop.batch
        positions = range(number * batch, (number + 1) * batch)
        rows = trainer.batch_at(positions).to(trainer.device, torch.float32).tensors
        for name, step in found.items():
            losses[name].append(step((rows["ids"], rows["labels"])))
    reference, most = losses["plain, eager"], 1e-2 if chosen.precision == "bfloat16" else 1e-4
    apart = {
        name: max(abs(a - b) for a, b in zip(those, reference, strict=True))
        for name, those in losses.items()
    }
    assert max(apart.values()) < most, f"losses differ: {apart}"
    assert reference[-1] < reference[0], "nothing is learned"
    return apart


def finish(chosen):
    if chosen.device == "cuda":
        torch.cuda.synchronize()


def timed(step, steps, chosen):
    """Return the seconds of one step, the mean over some."""
    finish(chosen)
    began = chosen.now()
    for _ in range(steps):
        step()
    finish(chosen)
    return (chosen.now() - began) / steps


def peak_of(chosen):
    """Return the FLOPs per second of one large matrix product, the best of a few."""
    size = 8192 if chosen.device == "cuda" else 1024
    dtype = torch.bfloat16 if chosen.precision == "bfloat16" else torch.float32
    factor = torch.randn(size, size, device=chosen.device, dtype=dtype)
    return 2 * size**3 / min(timed(lambda: factor @ factor, 1, chosen) for _ in range(6))


def their_trainer(chosen, tokens):
    """Return a function: seconds of a step of transformers' Trainer with GPT-2 of these sizes."""
    import accelerate  # noqa: F401 - Trainer asks for it later, in a longer sentence
    import transformers

    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore")
    layers, heads, width, length, vocabulary, batch = chosen.shape
    folder = tempfile.mkdtemp()
    sizes = {"layers": layers, "heads": heads, "width": width, "length": length}
    ours, plain = fresh_gpt(sizes | {"vocabulary": vocabulary})
    qk.models.save(ours, folder)
    model = transformers.GPT2LMHeadModel.from_pretrained(folder)
    ids = torch.from_numpy(tokens[: length + 1].astype(np.int64))[None]
    with torch.no_grad():
        wanted = plain(ids[:, :-1], ids[:, 1:])[0]
        apart = float((model.eval()(ids[:, :-1]).logits - wanted).abs().max())
    assert apart < 1e-4, f"GPT-2 of transformers differs by {apart}"

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return len(tokens) // length - 1

        def __getitem__(self, index):
            row = torch.from_numpy(tokens[index * length :][:length].astype(np.int64))
            return {"input_ids": row, "labels": row}

    class Clock(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **more):
            finish(chosen)
            marks.append(chosen.now())

    marks = []

    def seconds(steps):
        marks.clear()
        arguments = transformers.TrainingArguments(
            folder, max_steps=steps + 2, per_device_train_batch_size=batch, report_to="none",
            bf16=chosen.precision == "bfloat16", use_cpu=chosen.device == "cpu",
            save_strategy="no", disable_tqdm=True, logging_steps=10**6, weight_decay=0.1,
        )  # fmt: skip
        transformers.Trainer(model, arguments, train_dataset=Rows(), callbacks=[Clock()]).train()
        return (marks[-1] - marks[1]) / (len(marks) - 2)

    return seconds


def measured(chosen):
    trainer, found, tokens = contenders(chosen)
    began = time.perf_counter()
    apart = first_losses(trainer, found, chosen, chosen.check)
    print(f"losses agree to {max(apart.values()):.1e}; {time.perf_counter() - began:.0f} s")
    timers = {
        name: lambda step=step: timed(step, chosen.steps, chosen) for name, step in found.items()
    }
    result = {"size": chosen.size, "apart": apart, "precision": chosen.precision}
    result |= {"clock": chosen.clock, "threads": torch.get_num_threads()}
    if not chosen.no_trainer:
        try:
            seconds = their_trainer(chosen, tokens)
            timers["transformers' Trainer, eager"] = lambda: seconds(chosen.steps)
        except ImportError as error:
            result["no Trainer"] = str(error)
    flops, rows, peaks = step_work(*chosen.shape), {name: [] for name in timers}, []
    for number in range(chosen.rounds):
        peaks.append(peak_of(chosen))
        names = list(timers)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            rows[name].append(timers[name]())
        write(chosen, result | summary(rows, peaks, flops, chosen))
    return result | summary(rows, peaks, flops, chosen)


def summary(rows, peaks, flops, chosen):
    done = {name: times for name, times in rows.items() if times}
    tokens = chosen.shape[3] * chosen.shape[5]
    found = {
        name: {
            "ms": 1e3 * statistics.median(times),
            "tokens_per_second": tokens / statistics.median(times),
            "share_of_peak": statistics.median(
                flops / t / p for t, p in zip(times, peaks, strict=False)
            ),
        }
        for name, times in done.items()
    }
    ratios = {}
    for name, times in done.items():
        for kind in ("eager", "compiled"):
            mine = done.get(f"ours, {kind}", [])
            if name.endswith(kind) and name != f"ours, {kind}" and mine:
                pairs = [a / b for a, b in zip(times, mine, strict=False)]
                ratios[f"{name} / ours"] = [min(pairs), statistics.median(pairs), max(pairs)]
    peak = statistics.median(peaks)
    return {"steps": found, "ratios": ratios, "peak": peak, "step_flops": flops}


def write(chosen, result):
    if chosen.out:
        chosen.out.write_text(json.dumps(result))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="nano", choices=SIZES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10, help="of each contender in a round")
    parser.add_argument("--check", type=int, default=20, help="steps whose losses are compared")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--clock", default="wall", choices=("wall", "cpu"))
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--no-trainer", action="store_true")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    chosen.shape = SIZES[chosen.size]
    chosen.now = {"wall": time.perf_counter, "cpu": time.process_time}[chosen.clock]
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    result = measured(chosen)
    for name, row in result["steps"].items():
        print(
            f"{name:32} {row['ms']:9.2f} ms a step {row['tokens_per_second']:11.0f} tokens/s "
            f"{row['share_of_peak']:7.1%} of the peak"
        )
    write(chosen, result)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
