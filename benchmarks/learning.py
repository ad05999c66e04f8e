"""What the recipes learn at full length, fixed seeds: curves, results, and what they stand beside.

    python benchmarks/learning.py --out FOLDER [--only NAME ...] [--seconds N] [--cores N]
    python benchmarks/learning.py --draw docs/training FOLDER/learning.json

The data are found as `qk train` finds them, in QUERYKEY_DATA. Jobs are processes side by side, as
many as there are cores for; what there is no time for is stopped, and says so (`finished` is
false). On the CPU a job has one thread. `learning.json` is written anew every half minute, so that
what is done is kept whatever comes. The last line printed is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import learning_jobs as jobs
import torch

from querykey.show import Series, line_chart, write_file

SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Job:
    """A recipe to train, what to measure afterwards, and where."""

    recipe: str
    measure: object = jobs.plain
    seeds: tuple[int, ...] = (0,)
    flags: dict[str, str] = field(default_factory=dict)
    large: bool = True  # on the GPU, where there is one


SHAKESPEARE = {"path": "text/tinyshakespeare.txt"}  # below QUERYKEY_DATA
PAIRS = (8, 16, 32)
SHALLOW = {"layers": "2", "dropout": "0.1"}
LABELS = {"objective-name": "classes", "unlabelled": "false", "batch": "64", "steps": "3000"}
MECHANISMS = ("recall", "recall-quadratic", "recall-elu", "recall-quadratic-decay")
JOBS: dict[str, Job] = {
    "characters": Job("characters", seeds=SEEDS, flags=SHAKESPEARE, large=False),
    "german-english": Job("german-english", jobs.translation),
    "german-english-torch": Job("german-english", jobs.translation_by_torch),
    "mnist": Job("mnist", seeds=SEEDS),
    "masked-words": Job("masked-words", jobs.masked),
    "snippets": Job("snippets", jobs.classes, SEEDS),
    "snippets-two-layers": Job("snippets", jobs.classes, SEEDS, SHALLOW),
    "snippets-labels": Job("snippets", jobs.classes, flags=SHALLOW | LABELS),
    "snippets-development": Job("snippets", jobs.development),
    "snippets-two-layers-development": Job("snippets", jobs.development, flags=SHALLOW),
    "words-and-pairs": Job("words-and-pairs", jobs.classes, SEEDS),
    "words-and-pairs-shakespeare": Job(
        "words-and-pairs", jobs.classes, SEEDS, SHAKESPEARE | {"steps": "1500"}
    ),
    "dates": Job("dates", jobs.dates),
    "adjacent": Job("adjacent", jobs.classes, SEEDS),
    **{
        f"{name}-{pairs}": Job(name, flags={"length": str(4 * pairs), "queries": str(pairs)})
        for pairs in PAIRS
        for name in MECHANISMS
    },
    "adjacent-shakespeare": Job("adjacent", jobs.classes, SEEDS, SHAKESPEARE | {"steps": "1500"}),
    "entailed": Job("entailed"),
    "inverted": Job("inverted"),
}


@dataclass(frozen=True)
class Task:
    """One job with one seed, and the folder of its run."""

    name: str
    seed: int
    folder: Path
    device: str

    @property
    def job(self) -> Job:
        return JOBS[self.name]


def tasks(names, out: Path) -> list[Task]:
    gpu = torch.cuda.is_available()
    found = []
    for name in names or JOBS:
        device = "cuda" if gpu and JOBS[name].large else "cpu"
        found += [Task(name, s, out / f"{name}-{s}", device) for s in JOBS[name].seeds]
    return found


def do(task: Task, scale: float) -> None:
    """Do one task, in this process."""
    torch.set_num_threads(1)
    flags = {"seed": str(task.seed), "device": task.device} | task.job.flags
    if "path" in flags:
        flags["path"] = str(Path(os.environ["QUERYKEY_DATA"], flags["path"]))
    recipe = jobs.RECIPES[task.job.recipe].config
    steps = int(flags.get("steps") or recipe.get("loop", {}).get("steps", 2000))
    flags["steps"] = str(max(int(steps * scale), 2))
    flags.setdefault("evaluate_every", str(max(int(steps * scale) // 10, 1)))
    flags["save_every"] = "0"
    jobs.do(task.job.measure, task.job.recipe, task.folder, flags)


def begin(task: Task, scale: float) -> subprocess.Popen:
    words = [sys.executable, __file__, "--out", str(task.folder.parent), "--scale", str(scale)]
    words += ["--task", task.name, str(task.seed)]
    errors = task.folder.with_suffix(".log").open("w")
    return subprocess.Popen(
        words, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=errors, stdout=errors
    )


def go(todo: list[Task], seconds: float, cores: int, scale: float, patience: float = 40) -> None:
    """Do all tasks side by side, as many of each kind as there is room for, until time is up."""
    end, out, running = time.monotonic() + seconds, todo[0].folder.parent, {}
    few = min(sum(task.device == "cpu" for task in todo), 5)
    room = {"cuda": max(cores - few, 1), "cpu": few if torch.cuda.is_available() else cores}
    waiting, last = list(todo), 0.0
    while waiting or running:
        for task in list(waiting):
            if sum(t.device == task.device for t in running) < room[task.device]:
                running[task] = begin(task, scale)
                waiting.remove(task)
        if not any(task.device == "cuda" for task in waiting):  # its cores are free
            room["cpu"] = cores - sum(task.device == "cuda" for task in running)
        running = {task: process for task, process in running.items() if process.poll() is None}
        if time.monotonic() > end:
            break
        if time.monotonic() - last > 30:
            write_file(out / "learning.json", json.dumps(collected(todo)))
            last = time.monotonic()
        time.sleep(0.3)
    for process in running.values():  # a run that is told to stop saves, and is measured
        process.send_signal(signal.SIGTERM)
    while running and time.monotonic() < end + patience:
        running = {task: process for task, process in running.items() if process.poll() is None}
        time.sleep(0.3)
    for process in running.values():
        process.kill()


def collected(todo: list[Task]) -> dict:
    """Return what is known of every task: its curves, and what was measured at its end."""
    return {f"{task.name}-{task.seed}": known_of(task) for task in todo}


def known_of(task: Task) -> dict:
    log, result = task.folder / "log.jsonl", task.folder / "result.json"
    lines = []
    for line in log.read_text().splitlines() if log.exists() else []:
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    losses = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    every = max(len(losses) // 100, 1)
    groups = [losses[i : i + every] for i in range(0, len(losses), every)]
    seconds = [line["seconds"] for line in lines if "seconds" in line]
    found = {
        "training": [(g[-1][0], sum(loss for _, loss in g) / len(g)) for g in groups],
        "validation": [(a["step"], a["evaluation"]) for a in lines if "evaluation" in a],
        "median_step": sorted(seconds)[len(seconds) // 2] if seconds else None,
    }
    if result.exists():
        found |= json.loads(result.read_text())
    elif task.folder.with_suffix(".log").exists():
        found["log"] = task.folder.with_suffix(".log").read_text()[-1500:]
    return found


# Each figure: its file, its title, what is drawn, and the jobs whose curves it shows.
FIGURES = (
    ("characters", "Characters of tinyshakespeare", "loss", ("characters",)),
    ("translation", "German to English", "loss", ("german-english", "german-english-torch")),
    ("masked-words", "Masked words of Python's library", "loss", ("masked-words",)),
    ("classes", "Classes, share right", "correct", ("mnist", "snippets", "adjacent", "entailed")),
    ("dates", "Dates to ISO 8601, rows right", "rows", ("dates",)),
    *(
        (f"recall-{n}", f"Associative recall, {n} pairs, share right", "correct",
         tuple(f"{name}-{n}" for name in MECHANISMS))
        for n in PAIRS
    ),
)  # fmt: skip


def draw(found: dict, folder: Path) -> None:
    """Write the figures of what was learned: validation against steps."""
    for file, title, what, names in FIGURES:
        series = []
        for key, facts in found.items():
            name = key.rpartition("-")[0]
            points = [(s, e[what]) for s, e in facts.get("validation", []) if what in e]
            if name in names and points:
                several = sum(k.rpartition("-")[0] == name for k in found) > 1
                series.append(Series(key if several else name, points))
        if series:
            write_file(folder / f"{file}.svg", line_chart(series, "steps", what, title))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/learning"))
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of steps")
    parser.add_argument("--task", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--draw", nargs=2, type=Path, metavar=("FOLDER", "JSON"))
    chosen = parser.parse_args()
    if chosen.draw:
        draw(json.loads(chosen.draw[1].read_text()), chosen.draw[0])
        return
    if chosen.task:
        name, seed = chosen.task[0], int(chosen.task[1])
        task = next(t for t in tasks([name], chosen.out) if t.seed == seed)
        do(task, chosen.scale)
        return
    chosen.out.mkdir(parents=True, exist_ok=True)
    todo = tasks(chosen.only, chosen.out)
    go(todo, chosen.seconds, chosen.cores, chosen.scale)
    found = collected(todo)
    write_file(chosen.out / "learning.json", json.dumps(found))
    long = {"training", "validation", "said"}
    brief = {k: {n: x for n, x in v.items() if n not in long} for k, v in found.items()}
    print(json.dumps(brief))


if __name__ == "__main__":
    main()
