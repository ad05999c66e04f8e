"""The peak of a training step: ours, torch's MemTracker, accelerate, and what is allocated.

python benchmarks/cost_memory_peers.py

The models of cost.py, math attention, a forward and a backward pass on the CPU. The truth is what
torch's profiler sees the allocator hand out, with weights, buffers and inputs. MemTracker, of
torch.distributed, watches a real step. accelerate's `calculate_maximum_sizes` knows the weights
alone: shown are these and as many bytes of gradients, what its page on training without an
optimizer's state would count.
"""

import gc
import json
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import accelerate
import torch
from accelerate.utils import calculate_maximum_sizes
from cost import BATCH, MODELS, SEQ, example
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

import querykey as qk
from querykey.show import print_table


def step(model, inputs):
    out = model(inputs)
    first = out if isinstance(out, torch.Tensor) else out[0]
    first.backward(torch.ones_like(first))


def allocated(name):
    """The bytes that are there before the step, and the most that it takes beside them."""
    model, inputs = MODELS[name](), example(name)
    there = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held(model)}
    gc.collect()
    with (
        sdpa_kernel(SDPBackend.MATH),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found,
    ):
        step(model, inputs)
    events = found.profiler.kineto_results.events()
    taken = sorted(
        (e.start_ns(), i, e.nbytes()) for i, e in enumerate(events) if e.name() == "[memory]"
    )
    now = most = 0
    for _, _, size in taken:
        now += size
        most = max(most, now)
    return sum(there.values()) + inputs.nbytes + most


def held(model):
    return [*model.parameters(), *model.buffers()]


def ours(name):
    inputs = qk.array("batch", "seq", 64) if name == "encoder layer" else qk.tokens("batch", "seq")
    report = qk.cost(MODELS[name](), inputs, attention="math")
    return report.peak(batch=BATCH, seq=SEQ).bytes


def by_tracker(name):
    model, inputs = MODELS[name](), example(name)
    tracker = MemTracker()
    tracker.track_external(model)
    with sdpa_kernel(SDPBackend.MATH), tracker:
        step(model, inputs)
    (sizes,) = (
        found
        for device, found in tracker.get_tracker_snapshot("peak").items()
        if device.type == "cpu"
    )
    return sizes["Total"]


def by_accelerate(name):
    total, _ = calculate_maximum_sizes(MODELS[name]())
    return 2 * total


def main():
    rows = []
    for name in MODELS:
        truth = allocated(name)
        row = {"model": name, "truth": truth}
        for label, find in (("ours", ours), ("tracker", by_tracker), ("accelerate", by_accelerate)):
            try:
                row[label] = int(find(name))
            except Exception as error:
                row[label] = f"{type(error).__name__}: {str(error)[:80]}"
        rows.append(row)

    def cell(row, label):
        value = row[label]
        return f"{value} ({value / row['truth']:.1%})" if isinstance(value, int) else value

    labels = ("ours", "tracker", "accelerate")
    table = [[row["model"], row["truth"], *(cell(row, label) for label in labels)] for row in rows]
    print_table(("model", "allocated", *labels), table)
    versions = {"torch": torch.__version__, "accelerate": accelerate.__version__}
    print(json.dumps({"benchmark": "cost_memory_peers", "rows": rows, "versions": versions}))


if __name__ == "__main__":
    main()
