"""Every architecture of transformers at the size of its default configuration: is there an answer?

python benchmarks/cost_real_sizes.py --rows rows.jsonl [--write docs/dev/cost-real-sizes.md]

Every target is tried in a process of its own, for at most LIMIT seconds of a processor, in an order
that is drawn, so that a part of them is a fair sample. `--rows` keeps what was done.
"""

import argparse
import json
import multiprocessing
import os
import random
import resource
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import transformers

from querykey.costs.command import cost_of_target
from querykey.errors import QuerykeyError
from querykey.targets import pairs

LIMIT = 40  # seconds of a processor
SEED = 0


def tried(name, pipe):
    """Send what came of one target, with seconds of a processor and the most memory it took."""
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    row, began = {"target": name, "state": "answered", "why": ""}, time.process_time()
    try:
        report = cost_of_target(name)
        row |= {"params": int(report.params), "formula": str(report.flops.forward)}
        row |= {"valid": str(report.valid), "engine": report.engine}
    except QuerykeyError as error:
        row |= {"state": "refused", "why": str(error)}
    except Exception as error:  # a crash of ours, which is reported as one
        row |= {"state": "crashed", "why": f"{type(error).__name__}: {error}"[:300]}
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pipe.send(row | {"seconds": time.process_time() - began, "mib": (most - before) >> 10})


def in_a_process(name):
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=tried, args=(name, theirs))
    process.start()
    theirs.close()
    try:
        row = ours.recv()
    except EOFError:
        row = {"target": name, "state": "too slow", "why": f"more than {LIMIT} s of a processor"}
        row |= {"seconds": float(LIMIT), "mib": 0}
    process.join()
    return row


def page(rows, total):
    answered = [row for row in rows if row["state"] == "answered"]
    lines = [
        "# Real sizes: which architectures `qk cost` answers for at their own size",
        "",
        f"`python benchmarks/cost_real_sizes.py` tried {len(rows)} of {total} targets of "
        f"transformers {transformers.__version__} (torch {torch.__version__}), in a drawn order, "
        f"at the sizes of their default configurations: {len(answered)} answered, forward and "
        f"backward. Seconds of one core: median "
        f"{statistics.median(row['seconds'] for row in answered):.1f}, "
        f"{sum(row['seconds'] < 10 for row in answered)} of those below 10, "
        f"most {max(row['seconds'] for row in answered):.0f}. Memory beyond torch and "
        f"transformers: at most {max(row['mib'] for row in answered) / 1024:.2f} GiB.",
        "",
        "## Without an answer",
        "",
        *(
            f"- `{row['target']}` ({row['state']}): {row['why']}"
            for row in rows
            if row["state"] != "answered"
        ),
        "",
        "## Answered",
        "",
        "| target | parameters | seconds |",
        "|---|---|---|",
        *(f"| {r['target']} | {r['params']:,} | {r['seconds']:.1f} |" for r in answered),
    ]
    return "\n".join([*lines, ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=Path, required=True, help="keep what is done, and go on")
    parser.add_argument("--write", type=Path, help="write what was done as a Markdown page")
    parser.add_argument("--known", action="store_true", help="only what is in --rows")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none after them")
    options = parser.parse_args()
    names = sorted(f"hf:{kind}:{head}" for kind, head in pairs())
    random.Random(SEED).shuffle(names)
    text = options.rows.read_text() if options.rows.exists() else ""
    known = {row["target"]: row for row in map(json.loads, text.splitlines())}
    until = time.monotonic() + options.seconds
    for name in [] if options.known else names:
        if name not in known and time.monotonic() < until:
            known[name] = row = in_a_process(name)
            with options.rows.open("a") as file:
                print(json.dumps(row), file=file)
            print(f"{row['state']:<10}{name:<40}{row['seconds']:6.1f} s  {row['why'][:120]}")
            sys.stdout.flush()
    rows = [known[name] for name in sorted(known)]
    if options.write:
        options.write.write_text(page(rows, len(names)))
    states = [row["state"] for row in rows]
    print(json.dumps({"benchmark": "cost_real_sizes", **{s: states.count(s) for s in set(states)}}))


if __name__ == "__main__":
    main()
