"""Many targets, each in a worker process that may hang, crash or grow at its own cost.

Workers are forked from a parent that has loaded the libraries and computed nothing, so that a
target costs its own time alone.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from torch import nn

from querykey.laws.check import as_counterpart, as_subject, choose, run_check
from querykey.laws.finding import Finding
from querykey.laws.private import preload_flex
from querykey.laws.report import Report, versions
from querykey.laws.running.store import Question, Store
from querykey.laws.subject import Subject
from querykey.targets import (
    Input,
    TargetError,
    argument_names,
    by_name,
    preload,
    stated_inputs,
)
from querykey.words import check_fields, checked, raised, traceback_of, whole

SECONDS, MEBIBYTES = 120.0, 6144
FEW = 2  # for so few targets, what only some models need is not loaded beforehand


@dataclass(frozen=True)
class Limits:
    """How much time and memory one target may take."""

    seconds: float = SECONDS
    mebibytes: int = MEBIBYTES

    def __post_init__(self):
        check_fields(self)


@dataclass
class _Worker:
    """A worker process, with the findings that it has sent so far."""

    target: str
    process: Any
    pipe: Connection
    laws: list[str]
    built: bool = False
    began: float = field(default_factory=time.monotonic)
    findings: list[Finding] = field(default_factory=list)

    def memory(self) -> int:
        """Return the resident memory in mebibytes, and 0 where the system does not tell."""
        try:
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return 0
        return pages * resource.getpagesize() >> 20


@checked
def check_all(
    targets: Iterable[str],
    laws: Iterable[str] | None = None,
    seed: int = 0,
    workers: int | None = None,
    limits: Limits | None = None,
    store: str | Path | None = None,
) -> list[Report]:
    """Check every target in a worker with limits; a run with a `store` can be resumed.

    A report in the store counts while the target's code, the laws, the seed and the versions of
    what is installed are those it was made with.
    """
    names = list(targets)
    reports = {r.target: r for r in stream(names, laws, seed, workers, limits, store)}
    return [reports[name] for name in names]


@checked
def stream(
    targets: Iterable[str],
    laws: Iterable[str] | None = None,
    seed: int = 0,
    workers: int | None = None,
    limits: Limits | None = None,
    store: str | Path | None = None,
) -> Iterator[Report]:
    """Yield reports as they are finished."""
    if workers is not None:
        whole("workers", workers)
    chosen = tuple(law.name for law in choose(laws))
    return answers(targets, Question(chosen, seed), workers, limits, store)


def answers(
    targets: Iterable[str],
    question: Question,
    workers: int | None = None,
    limits: Limits | None = None,
    store: str | Path | None = None,
    tell: Callable[[str, Finding], None] = lambda target, finding: None,
) -> Iterator[Report]:
    """Yield a report per target as they are finished, and tell of every finding as it comes."""
    waiting = list(dict.fromkeys(targets))
    kept = None if store is None else Store(store)
    questions = {name: question.of(name) for name in waiting if kept}
    for name in list(questions):
        if kept and (report := kept.find(questions[name])):
            waiting.remove(name)
            yield report
    _load(waiting)
    context = multiprocessing.get_context("fork")
    count = workers or min(os.cpu_count() or 1, 8)
    active: list[_Worker] = []
    try:
        while waiting or active:
            while waiting and len(active) < count:
                active.append(_start(context, waiting.pop(0), question))
            for report in _progress(active, limits or Limits(), question.seed, tell):
                if kept:
                    kept.keep(questions[report.target], report)
                yield report
    finally:
        for worker in active:
            _end(worker)


def _load(targets: list[str]) -> None:
    """Import once what every worker needs, and start no thread before the fork."""
    import torch

    torch.set_num_threads(1)
    if any(name.startswith("hf:") or os.path.isdir(name) for name in targets):
        preload()
        if len(targets) > FEW:
            preload_flex()


def _start(context: Any, target: str, question: Question) -> _Worker:
    """Fork a worker for one target."""
    ours, theirs = context.Pipe(duplex=False)
    # The system asks for the thread that forked, and a thread may end before the process does.
    main = threading.current_thread() is threading.main_thread()
    work = (theirs, target, question, os.getpid() if main else None)
    process = context.Process(target=_work, args=work, daemon=True)
    process.start()
    theirs.close()
    return _Worker(target, process, ours, list(question.laws))


def _work(pipe: Connection, target: str, question: Question, parent: int | None) -> None:
    """Run in the worker: send that it is built, every finding, then the report, or why not."""
    gc.freeze()  # what the parent has loaded is garbage in no target
    if parent is not None:
        _end_with(parent)
    # A model that prints must not write into the table.
    with open(os.devnull, "w") as nowhere:
        sys.stdout = sys.stderr = nowhere
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        try:
            pipe.send(("report", _report(pipe, target, question).as_json()))
        except TargetError as error:
            pipe.send(("ended", (str(error), traceback_of(error.__cause__))))
        except BaseException as error:  # SystemExit too: it may end its worker, and no more
            pipe.send(("ended", (f"`{target}`: {raised(error, 300)}", traceback_of(error))))
        pipe.close()
    os._exit(0)


def _end_with(parent: int) -> None:
    """Have this process killed when its parent ends, which then holds it to no limit any more."""
    if sys.platform == "linux":
        prctl, death_signal = ctypes.CDLL(None).prctl, 1
        prctl(death_signal, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that
        os._exit(1)


def _report(pipe: Connection, target: str, question: Question) -> Report:
    """Build the target and check it; the parent hears how far it came."""
    began = time.monotonic()
    subject = as_subject(target, None, question.kind, question.seed)
    if question.inputs:
        subject = replace(subject, example=_stated(subject, question.inputs))
    if question.like is not None:
        subject = replace(subject, like=as_counterpart(question.like, question.seed))
    pipe.send(("built", None))
    report = run_check(
        subject, None, None, question.laws, question.weights, question.seed,
        lambda f: pipe.send(("law", f.as_json())),
    )  # fmt: skip
    return replace(report, seconds=time.monotonic() - began)


def _stated(subject: Subject, inputs: tuple[str, ...]) -> dict[str, Input]:
    """Return the inputs that the user states, with ids below those of the first embedding.

    Those that must be given beside them and are masks, lengths or positions by name are added.
    """
    forward = subject.forward
    function = forward.forward if isinstance(forward, nn.Module) else forward
    words = [m.num_embeddings for m in subject.model.modules() if isinstance(m, nn.Embedding)]
    stated = stated_inputs(inputs, list(inspect.signature(function).parameters), *words[:1])
    others = argument_names(subject.model) if forward is subject.model else []
    rest = {n: by_name(n) for n in others if n not in stated}
    return stated | {name: found for name, found in rest.items() if found}


def _progress(
    active: list[_Worker], limits: Limits, seed: int, tell: Callable[[str, Finding], None]
) -> Iterator[Report]:
    """Wait a little, and yield the reports of targets that have ended, well or not."""
    ready = wait([worker.pipe for worker in active], timeout=0.05)
    for worker in list(active):
        report = _received(worker, seed, tell) if worker.pipe in ready else None
        if report is None:
            report = _overdrawn(worker, limits, seed)
        if report is not None:
            _end(worker)
            active.remove(worker)
            yield report


def _received(worker: _Worker, seed: int, tell: Callable[[str, Finding], None]) -> Report | None:
    """Read one message of a worker; return the report where it was the last."""
    try:
        kind, content = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join(1)
        code = worker.process.exitcode
        return _unfinished(worker, seed, "error", f"its process ended by itself (exit code {code})")
    if kind == "report":
        return Report.from_json(content)
    if kind == "ended":
        note, trace = content
        if not worker.built:
            return replace(_unbuilt(worker, seed, note), traceback=trace)
        return replace(_unfinished(worker, seed, "error", note), traceback=trace)
    if kind == "built":
        worker.built = True
    if kind == "law":
        finding = Finding(**content)
        worker.findings.append(finding)
        tell(worker.target, finding)
    return None


def _overdrawn(worker: _Worker, limits: Limits, seed: int) -> Report | None:
    """Return a report where a worker has taken more time or memory than it may."""
    if time.monotonic() - worker.began > limits.seconds:
        return _unfinished(
            worker, seed, "timeout", f"stopped after {limits.seconds:g} s; --timeout S allows more"
        )
    used = worker.memory()
    if used > limits.mebibytes:
        return _unfinished(worker, seed, "error", f"stopped when it held {used} MiB of memory")
    return None


def _unfinished(worker: _Worker, seed: int, verdict: str, note: str) -> Report:
    """Return a report with the findings so far, and this verdict on all other laws."""
    tried = {finding.law for finding in worker.findings}
    rest = [Finding(name, verdict, note=note) for name in worker.laws if name not in tried]
    spent = time.monotonic() - worker.began
    return Report(
        worker.target, "unknown", [*worker.findings, *rest], True, spent, seed,
        versions=versions(), note=note,
    )  # fmt: skip


def _unbuilt(worker: _Worker, seed: int, note: str) -> Report:
    spent = time.monotonic() - worker.began
    return Report(worker.target, "unknown", [], False, spent, seed, versions=versions(), note=note)


def _end(worker: _Worker) -> None:
    if worker.process.is_alive():
        worker.process.kill()
    worker.process.join()
    worker.pipe.close()
