"""Checking one model: what it is, which laws concern it, and whether it obeys them."""

from __future__ import annotations

import fnmatch
import gc
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn

from querykey.errors import QuerykeyError, WrongTypeError
from querykey.laws.catalogue.accumulation import accepts_the_count
from querykey.laws.catalogue.determinism import is_deterministic
from querykey.laws.catalogue.not_finite import spoiled
from querykey.laws.catalogue.table import LAWS
from querykey.laws.finding import Finding
from querykey.laws.judge import judge
from querykey.laws.law import Law
from querykey.laws.report import Report, versions
from querykey.laws.run import PLAIN
from querykey.laws.runner import Runner
from querykey.laws.subject import Subject
from querykey.laws.training.law import TrainingLaw
from querykey.laws.understanding.inputs import UnfitError
from querykey.laws.understanding.shrinking import shrunk
from querykey.laws.understanding.snapshot import Snapshot
from querykey.laws.understanding.understand import understand
from querykey.targets import TakesBatch, build, quiet, uncompiled
from querykey.words import a_type, checked, seed_number, suggest, traceback_of

Named = TypeVar("Named", bound=Law | TrainingLaw)
KINDS = {"decoder": True, "encoder": False, "encoder-decoder": True, "vision": False}


Model = nn.Module | Subject | str
Like = Model | tuple[Model, Callable[..., Any]]


class BadChoiceError(QuerykeyError):
    """One sentence: a law, a kind or a choice of weights that does not exist."""


def check(
    model: nn.Module | Subject | str,
    example: Any = None,
    kind: str | None = None,
    laws: Iterable[str | Law] | None = None,
    weights: str = "both",
    seed: int = 0,
    like: Like | None = None,
) -> Report:
    """Try every law that concerns a model on copies of it; nothing of the model is changed.

    `model` is a module, a Subject that says more about one, or a target's name. `kind` says what it
    is meant to be (decoder, encoder, encoder-decoder, vision) where trying could mislead. `laws`
    are names, beginnings of names (`causal`), or Law values of your own; None means all.

    `like` is another model that is meant to be the same, or a pair of one and a function that takes
    the state dict of `model` and returns that of the other: the law `agreement` compares them.
    """
    choose_kind(kind)
    if like is not None:
        model = replace(as_subject(model, None, kind, seed), like=as_counterpart(like, seed))
    return run_check(model, example, kind, laws, weights, seed, lambda finding: None)


def run_check(
    model: nn.Module | Subject | str,
    example: Any,
    kind: str | None,
    laws: Iterable[str | Law] | None,
    weights: str,
    seed: int,
    tell: Callable[[Finding], None],
) -> Report:
    """Do what `check` does, and pass every finding to `tell` as it comes."""
    chosen = choose(laws)
    choose_kind(kind)
    seed = seed_number(seed)
    if not isinstance(weights, str) or weights not in ("random", "own", "both"):
        raise BadChoiceError(f"weights is random, own or both, not `{weights}`")
    began = time.perf_counter()
    subject = as_subject(model, example, kind, seed)
    findings: list[Finding] = []
    report = Report(subject.name, "unknown", [], seed=seed, weights=weights, versions=versions())
    grad = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    before = Snapshot(subject.model)  # copies share its classes, and the files of these
    try:
        with quiet(), torch.random.fork_rng(_gpus()), _old_objects_apart():
            runner, kept = _understood(subject, seed)
            facts = about(runner) | ({"tried on": kept} if kept else {})
            report = replace(report, kind=runner.facts.kind, about=facts)
            for finding in _findings(runner, chosen, weights):
                findings.append(finding)
                tell(finding)
    except UnfitError as error:
        findings = [Finding(law.name, error.verdict, note=str(error)) for law in chosen]
        report = replace(report, traceback=traceback_of(error.__cause__))
    finally:
        torch.set_grad_enabled(grad)
        before.restore()
    return replace(report, laws=findings, seconds=time.perf_counter() - began)


@contextmanager
def _old_objects_apart() -> Iterator[None]:
    """Keep the garbage collector from what was there before, which is most of what it looks at."""
    if gc.get_freeze_count():  # somebody did so already
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _understood(subject: Subject, seed: int) -> tuple[Runner, str]:
    """Return a runner, and which part of a large model it runs; the whole where no part runs."""
    small, kept = subject.model, ""
    if subject.forward is subject.model and subject.cache is None:
        with suppress(Exception):  # what cannot be made smaller is tried whole
            small, kept = shrunk(subject.model, words=subject.example is None)
    if kept:
        with suppress(UnfitError):
            return understand(replace(subject, forward=small), seed), kept
    return understand(subject, seed), ""


def _gpus() -> list[int]:
    """Return the GPUs whose random numbers the model may draw."""
    return list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []


def as_subject(
    model: nn.Module | Subject | str, example: Any, kind: str | None, seed: int = 0
) -> Subject:
    """Return a module, a target's name or a Subject as a Subject; the seed is for building it."""
    if isinstance(model, str):
        target = build(model, seed)
        subject = target.made
        subject = subject if isinstance(subject, Subject) else Subject(target.model)
        model = replace(subject, name=model)
    if isinstance(model, nn.Module):
        model = uncompiled(model)
        model = Subject(model, name=type(model).__name__)
    if not isinstance(model, Subject):
        raise WrongTypeError(
            f"check takes a torch.nn.Module, a Subject or a target's name, not {a_type(model)}"
        )
    if isinstance(model.forward, nn.Module):
        model = replace(model, forward=uncompiled(model.forward))
    if not model.name:
        model = replace(model, name=type(model.model).__name__)
    if example is not None:
        model = replace(model, example=example)
    if kind is not None and model.causal is None:
        model = replace(model, causal=KINDS[kind])
    return model


def as_counterpart(like: Any, seed: int = 0) -> tuple[Subject, Callable[..., Any] | None]:
    """Return another model as a Subject, and how weights come to it, where that is told."""
    other: Any = like
    mapping = None
    if isinstance(like, tuple) and len(like) == 2:
        other, mapping = like
    if mapping is not None and not callable(mapping):
        raise WrongTypeError(
            f"like is another model, or a pair of one and a function of state dicts, not a pair "
            f"with {a_type(mapping)}"
        )
    return as_subject(other, None, None, seed), mapping


def choose_kind(kind: str | None) -> None:
    """Raise a BadChoiceError where there is no such kind of model."""
    if kind is not None and not (isinstance(kind, str) and kind in KINDS):
        raise BadChoiceError(
            f"kind is one of {', '.join(KINDS)}, not `{kind}`{suggest(str(kind), KINDS)}"
        )


def choose(laws: Iterable[str | Law] | None) -> list[Law]:
    """Return laws that are given by name, by the beginning of a name, or as values."""
    if laws is None:
        return [law for law in LAWS if not law.on_request]
    chosen: list[Law] = []
    for law in laws if isinstance(laws, Iterable) and not isinstance(laws, str) else [laws]:
        if isinstance(law, Law):
            chosen.append(law)
        elif isinstance(law, str):
            chosen += laws_named(law)
        else:
            raise WrongTypeError(f"a law is a name or a Law, not {law!r}")
    return list(dict.fromkeys(chosen))


@checked
def laws_named(name: str) -> list[Law]:
    """Return the laws of this name, pattern, or beginning of names; at least one."""
    if name.startswith("training"):
        raise BadChoiceError(
            f"`{name}` names laws of training loops; querykey.check_training(run) tries them, or "
            f"`qk check --training file.py:run`"
        )
    return named(name, LAWS)


def named(name: str, laws: Iterable[Named]) -> list[Named]:
    """Return those of some laws that have this name, or match it, or begin so; at least one."""
    laws = list(laws)
    chosen = [
        law
        for law in laws
        if fnmatch.fnmatchcase(law.name, name) or (name and law.name.startswith(name))
    ]
    quick = [law for law in chosen if law.name == name or not getattr(law, "on_request", False)]
    if not chosen:
        hint = suggest(name, [law.name for law in laws])
        raise BadChoiceError(f"no law is called `{name}`{hint} (`qk laws` lists them)")
    return quick


def _findings(runner: Runner, laws: list[Law], weights: str) -> Iterable[Finding]:
    """Yield the finding of every law; a model that is not the same twice gets no further."""
    repeats, finite = _repeats(runner), _is_finite(runner)
    seen = ("purity", "determinism", "masked-row", *(("gradient.reaches",) * bool(spoiled(runner))))
    for law in laws:
        if not repeats and law.name not in ("purity", "determinism"):
            note = "the same call gives another answer, so no comparison means anything"
            yield Finding(law.name, "not-applicable", note=note)
        elif not finite and law.name not in seen:
            note = "its answers are not finite, and nothing can be seen through that"
            yield Finding(law.name, "vacuous", note=note)
        else:
            yield judge(runner, law, weights)


def _is_finite(runner: Runner) -> bool:
    """Return whether the plain call gives finite numbers; what it raises, every law reports."""
    answer = runner.attempt(runner.inputs(), PLAIN)
    return answer is None or bool(answer.isfinite().all())


def _repeats(runner: Runner) -> bool:
    """Return whether the same call is the same answer once dropout is kept from acting."""
    try:
        return is_deterministic(runner, dropout=False)
    except Exception:
        return True  # every law reports what is raised


def about(runner: Runner) -> dict[str, str]:
    """Return what was found out about a model, in words."""
    facts, length = runner.facts, runner.signature.only
    only = f", {length} tokens in every call" if length else ""
    forward = runner.subject.forward
    inside = f", in `{forward.argument}`" if isinstance(forward, TakesBatch) else ""
    words = {
        "input": f"{facts.signature.main.name} {facts.signature.main}{only}{inside}",
        "causal": f"{'yes' if facts.causal else 'no'}: {facts.intent.why}",
        "padding mask": ", ".join(map(str, facts.masks)) or "none",
        "cache": str(facts.cache) if facts.cache else "none found",
        "computed in": str(runner.copies.dtype).removeprefix("torch."),
    }
    if facts.loss:
        counts = accepts_the_count(runner)
        words["loss"] = f"from {facts.loss.name}{' and num_items_in_batch' * counts}"
    if facts.arguments.positions:
        words["positions"] = facts.arguments.positions.name
    return words


@checked
def assert_lawful(
    model: nn.Module | Subject | str,
    example: Any = None,
    kind: str | None = None,
    laws: Iterable[str | Law] | None = None,
) -> None:
    """Raise an AssertionError that shows every breach; this is for test suites."""
    report = check(model, example, kind, laws)
    broken = [f for f in report.laws if f.verdict in ("violated", "error", "timeout")]
    if broken:
        raise AssertionError(str(report))
