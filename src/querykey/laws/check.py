"""`check`: what a model is, which laws concern it, and whether it obeys."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from querykey.laws.catalogue.table import LAWS
from querykey.laws.judge import judge
from querykey.laws.law import Finding, Law
from querykey.laws.report import Report, versions
from querykey.laws.runner import Specimen
from querykey.laws.subject import Subject
from querykey.laws.trial import Run, conduct
from querykey.laws.understanding.arguments import examine
from querykey.laws.understanding.cache_protocol import find_protocol
from querykey.laws.understanding.copies import Bench, Setting
from querykey.laws.understanding.intent import also_causal, find_intent
from querykey.laws.understanding.signature import UnfitError, UnsuitedError, dissect
from querykey.targets import TargetError, build, quiet, uncompiled
from querykey.words import last_line, suggest

KINDS = {"decoder": True, "encoder": False, "encoder-decoder": True, "vision": False}


def check(
    model: nn.Module | Subject | str,
    example: Any = None,
    kind: str | None = None,
    laws: Iterable[str | Law] | None = None,
    weights: str = "both",
    seed: int = 0,
) -> Report:
    """Try every law that concerns a model on copies of it; nothing of the model is changed.

    `model` is a module, a Subject that says more about one, or a target's name. `kind` says what it
    is meant to be (decoder, encoder, encoder-decoder, vision) where trying could mislead. `laws`
    are names, beginnings of names (`causal`), or Law values of your own; None means all.
    """
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
    """The same, telling each finding as it comes."""
    chosen = choose(laws)
    if kind is not None and kind not in KINDS:
        raise ValueError(f"kind is one of {', '.join(KINDS)}, not `{kind}`{suggest(kind, KINDS)}")
    if weights not in ("random", "own", "both"):
        raise ValueError(f"weights is random, own or both, not `{weights}`")
    began = time.perf_counter()
    subject = as_subject(model, example, kind)
    findings: list[Finding] = []
    report = Report(subject.name, "unknown", [], seed=seed, weights=weights, versions=versions())
    grad = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    try:
        with quiet(), torch.random.fork_rng(_gpus()):
            specimen = prepare(subject, seed)
            report = replace(report, kind=specimen.kind, about=about(specimen))
            for finding in _findings(specimen, chosen, weights):
                findings.append(finding)
                tell(finding)
    except UnfitError as error:
        findings = [Finding(law.name, error.verdict, note=str(error)) for law in chosen]
    finally:
        torch.set_grad_enabled(grad)
    return replace(report, laws=findings, seconds=time.perf_counter() - began)


def _gpus() -> list[int]:
    """Those whose random numbers may be drawn."""
    return list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []


def as_subject(model: nn.Module | Subject | str, example: Any, kind: str | None) -> Subject:
    """Whatever was given, as a Subject."""
    if isinstance(model, str):
        target = build(model)
        model = Subject(target.model, name=model)
    if isinstance(model, nn.Module):
        model = uncompiled(model)
        model = Subject(model, name=type(model).__name__)
    if not isinstance(model, Subject):
        raise TypeError(
            f"check takes a torch.nn.Module, a Subject or a target's name, "
            f"not a {type(model).__name__}"
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


def prepare(subject: Subject, seed: int = 0) -> Specimen:
    """Find out what a model is; UnfitError says why it cannot be run."""
    bench = Bench(subject, seed)
    try:
        anatomy = dissect(bench)
        if "batch" not in anatomy.main.axes:
            raise UnsuitedError("its rows are not free: several make one sample")
        specimen = examine(bench, anatomy)
        intent = find_intent(specimen)
        specimen.causal, specimen.why, specimen.doubt = intent.causal, intent.why, intent.doubt
        if specimen.causal:
            specimen.also_causal = tuple(also_causal(specimen))
            specimen.cache = find_protocol(specimen)
    except UnfitError:
        raise
    except Exception as error:
        raise UnfitError(f"it could not be understood: {last_line(error)[:300]}") from error
    return specimen


def choose(laws: Iterable[str | Law] | None) -> list[Law]:
    """Laws by name, by a name's beginning, or as values."""
    if laws is None:
        return list(LAWS)
    wanted: list[Law] = []
    for each in laws if isinstance(laws, Iterable) and not isinstance(laws, str) else [laws]:
        if isinstance(each, Law):
            wanted.append(each)
            continue
        if not isinstance(each, str):
            raise TypeError(f"a law is a name or a Law, not {each!r}")
        found = [
            law
            for law in LAWS
            if fnmatch.fnmatchcase(law.name, each) or (each and law.name.startswith(each))
        ]
        if not found:
            names = [law.name for law in LAWS]
            raise ValueError(f"no law is called `{each}`{suggest(each, names)}")
        wanted += found
    return list(dict.fromkeys(wanted))


def _findings(specimen: Specimen, laws: list[Law], weights: str) -> Iterable[Finding]:
    """Each law's finding; a model that is not the same twice gets no further."""
    steady, finite = _steady(specimen), _finite(specimen)
    for law in laws:
        if not steady and law.name not in ("purity", "determinism"):
            why = "the same call gives another answer, so no comparison means anything"
            yield Finding(law.name, "not-applicable", note=why)
        elif not finite and law.name not in ("purity", "determinism", "masked-row"):
            why = "its answers are not finite, and nothing can be seen through that"
            yield Finding(law.name, "vacuous", note=why)
        else:
            yield judge(specimen, law, weights)


def _finite(specimen: Specimen) -> bool:
    """Whether the plainest call gives numbers."""
    try:
        answer = specimen.remembered(Run(specimen.inputs(Setting()), Setting()))
    except Exception:
        return True  # each law will say for itself what is raised
    return bool(answer.isfinite().all())


def _steady(specimen: Specimen) -> bool:
    """Whether the same call is the same answer once dropout is kept from acting."""
    from querykey.laws.catalogue.purity import determinism

    try:
        for trial in determinism(specimen, Setting()):
            runs = [
                replace(r, setting=replace(r.setting, dropout=False))
                for r in (trial.first, trial.second)
            ]
            trial = replace(trial, first=runs[0], second=runs[1])
            if not conduct(specimen, trial).deviation <= specimen.threshold:
                return False
    except Exception:
        return True  # each law will say for itself what is raised
    return True


def about(specimen: Specimen) -> dict[str, str]:
    """What was found out, in words."""
    said = {
        "input": f"{specimen.anatomy.main.name} {specimen.anatomy.main}",
        "causal": f"{'yes' if specimen.causal else 'no'}: {specimen.why}",
        "padding mask": ", ".join(mask.name for mask in specimen.masks) or "none",
        "cache": str(specimen.cache) if specimen.cache else "none found",
        "computed in": str(specimen.bench.dtype).removeprefix("torch."),
    }
    if specimen.positions:
        said["positions"] = specimen.positions.name
    return said


def assert_lawful(
    model: nn.Module | Subject | str,
    example: Any = None,
    kind: str | None = None,
    laws: Iterable[str | Law] | None = None,
) -> None:
    """For a test suite: an AssertionError that shows every breach, or nothing."""
    report = check(model, example, kind, laws)
    broken = [f for f in report.laws if f.verdict in ("violated", "error", "timeout")]
    if broken:
        raise AssertionError(str(report))


__all__ = ["TargetError", "assert_lawful", "check"]
