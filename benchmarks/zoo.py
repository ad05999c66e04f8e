"""Build every (architecture, head) pair of the installed `transformers` and list what came of it.

python benchmarks/zoo.py                     # a line per pair, a summary, a last line of JSON
python benchmarks/zoo.py --write docs/dev/zoo.md # the same as a page
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models: a second thread only waits

import torch
import transformers

from querykey.targets import TargetError, build, count_parameters, pairs
from querykey.targets.huggingface import HEADS


def survey() -> list[dict]:
    everything, rows = pairs(), []
    for index, (model_type, head) in enumerate(everything):
        name = f"hf:{model_type}:{head}"
        print(f"\r{index + 1}/{len(everything)} {name:<48}", end="", file=sys.stderr, flush=True)
        began = time.perf_counter()
        try:
            target = build(name)
        except TargetError as error:
            rows.append({"target": name, "head": head, "built": False, "why": str(error)})
        else:
            spent = time.perf_counter() - began
            size = count_parameters(target.model)
            rows.append(
                {"target": name, "head": head, "built": True, "seconds": spent, "size": size}
            )
    print(file=sys.stderr)
    return rows


def summary(rows: list[dict]) -> dict:
    built = [row for row in rows if row["built"]]
    return {
        "benchmark": "zoo",
        "built": len(built),
        "of": len(rows),
        "by_head": {head: sum(row["head"] == head for row in built) for head in HEADS},
        "median_seconds": round(statistics.median(row["seconds"] for row in built), 4),
        "slowest_seconds": round(max(row["seconds"] for row in built), 2),
        "refused": {row["target"]: row["why"] for row in rows if not row["built"]},
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def page(rows: list[dict], total: dict) -> str:
    lines = [
        "# The zoo: Hugging Face architectures as targets",
        "",
        f"`python benchmarks/zoo.py --write docs/dev/zoo.md` built {total['built']} of "
        f"{total['of']} (architecture, head) pairs of transformers {total['transformers']} with "
        f"torch {total['torch']}, each shrunk, with random weights, run once, without a download; "
        f"median {total['median_seconds']:.3f} s, slowest {total['slowest_seconds']} s.",
        "",
        "## Not built, and why",
        "",
        *(f"- {why}" for why in total["refused"].values()),
        "",
    ]
    for head in HEADS:
        names = [
            f"{row['target'].split(':')[1]} ({row['size']:,})"
            for row in rows
            if row["built"] and row["head"] == head
        ]
        lines += [f"## {head}: {len(names)} (parameters when shrunk)", "", ", ".join(names), ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, help="also write the list as a Markdown page")
    options = parser.parse_args()
    rows = survey()
    total = summary(rows)
    for row in rows:
        state = f"{row['seconds']:.3f} s" if row["built"] else row["why"]
        print(f"{'ok' if row['built'] else '--':<3}{row['target']:<40}{state}")
    if options.write:
        options.write.write_text(page(rows, total))
    print(json.dumps(total))


if __name__ == "__main__":
    main()
