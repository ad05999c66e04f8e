"""Compiled and exported models give the answers of the model; tried on request alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from querykey.laws.blaming.guilty_module import guilty_part
from querykey.laws.blaming.recorder import Recorder
from querykey.laws.catalogue.derivatives import score, trained
from querykey.laws.catalogue.gradients import has_weights
from querykey.laws.catalogue.paths import compared
from querykey.laws.catalogue.sweeps import once
from querykey.laws.law import Law, RefusalError
from querykey.laws.run import Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Evidence, Outcome, deviation
from querykey.laws.understanding.float64 import duplicate
from querykey.words import last_line


def compiles(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Compile the model, and call it at two lengths."""
    model = duplicate(runner.copies.of(setting), wide=False)
    compiled = torch.compile(runner.subject.on(model))
    yield from _bare(runner, setting, model, compiled, "when the model is compiled")


def _bare(
    runner: Runner, setting: Setting, model: nn.Module, other: Callable[..., Any], what: str
) -> Iterator[Outcome]:
    """Yield how far another callable's answers and gradients are from the model's own."""
    lengths = (setting.length, setting.length + 4) if runner.signature.varies else (setting.length,)
    function = runner.subject.on(model)
    for length in lengths:
        inputs = runner.copies.on_device(runner.inputs(Setting(length=length)))
        parts = []
        for way in (function, other):
            model.zero_grad(set_to_none=True)
            try:
                answer = runner.take(runner.copies.bind(way, inputs), inputs)
                score(answer).backward()
            except Exception as error:
                if way is function:
                    raise
                raise RefusalError(f"the compiled model raised {last_line(error)[:160]}") from error
            gradients = {n: None if p.grad is None else p.grad.clone() for n, p in trained(model)}
            parts.append((answer.detach(), gradients, Recorder()))
        yield compared(runner, what, parts[0], parts[1], None, setting)


def exports(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Export the model as a graph, and call that on other inputs."""
    model = duplicate(runner.copies.of(setting), wide=False)
    if runner.subject.forward is not runner.copies.model:
        raise RefusalError("a function around a model is not exported")
    inputs = runner.copies.on_device(runner.inputs(setting, seed=1))
    try:
        program = torch.export.export(model, (), runner.copies.on_device(runner.inputs(setting)))
        graph = program.module()
        answer = runner.take(graph(**inputs), inputs)
    except Exception as error:
        raise RefusalError(f"exporting raised {last_line(error)[:160]}") from error
    with torch.no_grad():
        own = runner.take(model(**inputs), inputs)
    far = deviation(own, answer)[0]
    note = f"answers move by {far:.2g} when the exported graph is called on other inputs"
    yield Outcome(far, note, setting, evidence=Evidence(module=guilty_part(model, "")))


LAWS = (
    Law(
        "paths.compile",
        says="Compiling a model changes neither answers nor gradients.",
        why="Otherwise what was tested is not what is trained.",
        how="A copy is compiled by torch.compile and called at two lengths; only on request, "
        "because that takes half a minute.",
        trials=compiles,
        applies=has_weights,
        sweep=once,
        on_request=True,
    ),
    Law(
        "paths.export",
        says="An exported graph gives the same answers on other inputs.",
        why="Otherwise a number of the example was frozen into the graph.",
        how="A copy is traced by torch.export, and the graph is called on other inputs of the "
        "same sizes; only on request.",
        trials=exports,
        sweep=once,
        on_request=True,
    ),
)
