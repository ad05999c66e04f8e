"""Try every law on every (architecture, head) pair of the installed `transformers`.

python benchmarks/laws.py                          # progress, a table of breaches, a line of JSON
python benchmarks/laws.py --store run.jsonl gpt2   # resumable; only targets that contain a word
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models: a second thread only waits

from querykey.laws.many import Limits, stream
from querykey.laws.report import Report
from querykey.show import print_table
from querykey.targets.huggingface import pairs


def survey(words: list[str], store: Path | None, workers: int) -> list[Report]:
    names = [f"hf:{model_type}:{head}" for model_type, head in pairs()]
    names = [name for name in names if not words or any(word in name for word in words)]
    made = []
    for report in stream(names, workers=workers, limits=Limits(seconds=180), store=store):
        made.append(report)
        words_ = f"{len(made)}/{len(names)} {report.target}"
        print(f"\r{words_:<60}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return made


def summary(reports: list[Report], seconds: float) -> dict:
    built = [report for report in reports if report.built]
    verdicts = Counter(finding.verdict for report in built for finding in report.laws)
    return {
        "benchmark": "laws",
        "targets": len(reports),
        "built": len(built),
        "seconds": round(seconds, 1),
        "median_seconds": round(statistics.median(report.seconds for report in built), 3),
        "slowest": max((round(report.seconds, 1), report.target) for report in built),
        "with_violations": sum(bool(report.violations) for report in built),
        "verdicts": dict(verdicts),
        "versions": built[0].versions,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    began = time.perf_counter()
    reports = survey(options.words, options.store, options.workers)
    rows = [
        (report.target, f.law, f.verdict, f.deviation or 0.0, f"{f.module} {f.source}", f.note)
        for report in reports
        for f in report.laws
        if f.verdict in ("violated", "limitation", "error", "timeout", "tie", "advice")
    ]
    rows += [(r.target, "", "not built", 0.0, "", r.note) for r in reports if not r.built]
    print_table(("target", "law", "verdict", "deviation", "module", "note"), rows)
    print(json.dumps(summary(reports, time.perf_counter() - began)))


if __name__ == "__main__":
    main()
