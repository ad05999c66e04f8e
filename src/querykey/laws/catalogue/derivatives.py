"""Derivatives of an answer by the embeddings of tokens, and by parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn

from querykey.laws.blaming.comparison import axes_of
from querykey.laws.blaming.recorder import Call, Recorder
from querykey.laws.runner import Specimen
from querykey.laws.trial import Cells, Outcome, Run
from querykey.targets import Input
from querykey.words import last_line


def reach(
    specimen: Specimen,
    run: Run,
    ask: Cells,
    forbidden: Cells,
    allowed: Cells,
    axis: str = "",
) -> Outcome:
    """How far the derivative of the asked answers reaches into forbidden tokens."""
    with embedded(specimen, run, axis) as (run, leaves):
        answer = specimen.answer(run)
        backward(score(answer, ask))
    outside = inside = 0.0
    note, where = "a derivative reaches where it must not", {}
    for leaf in leaves:
        gradient = leaf.gradient
        wrong, right = forbidden.of(gradient), allowed.of(gradient)
        if not gradient.isfinite().all():
            # Padding may not even poison: zero times infinity is no zero.
            return Outcome(math.inf, None, run.setting, {}, None, "the derivative is not finite")
        size = float(right.pow(2).mean().sqrt()) or 1.0
        if wrong.numel():
            worst = wrong.flatten(1).abs().amax(1)
            if float(worst.max()) / size >= outside:
                line = int(worst.argmax())
                outside = float(worst[line]) / size
                columns = forbidden.columns or (0,) * len(forbidden)
                where = {"sample": forbidden.rows[line], "position": columns[line]}
        inside = max(inside, float(right.abs().max()) if right.numel() else 0.0)
    guilty = None
    if outside > specimen.threshold:
        guilty = _blamed(specimen, run, ask, forbidden)
    if not leaves:
        note = "no embedding of the tokens is found to differentiate by"
    return Outcome(outside, inside, run.setting, where, None, note, guilty)


def _blamed(specimen: Specimen, run: Run, ask: Cells, forbidden: Cells) -> Call | None:
    """The first module that no forbidden derivative reaches from behind, and that passes one on."""
    recorder = Recorder(live=True)
    with embedded(specimen, run) as (run, _):
        answer = specimen.answer(run, recorder)
    kept = [t for call in recorder.done for t in (*call.inputs, *call.outputs) if t.requires_grad]
    found = torch.autograd.grad(score(answer, ask), kept, allow_unused=True)
    gradients = {id(t): g for t, g in zip(kept, found, strict=True)}
    batch, length = specimen.batch_of(run.inputs), specimen.length_of(run.inputs)

    def reached(several: list[torch.Tensor]) -> bool:
        for tensor in several:
            gradient, axes = gradients.get(id(tensor)), axes_of(tensor, batch, length)
            if gradient is not None and axes is not None:
                wrong = forbidden.of(gradient.movedim(axes, [0, 1]))
                if float(wrong.abs().max()) > specimen.threshold * float(gradient.abs().max()):
                    return True
        return False

    mixing = [c for c in recorder.done if not isinstance(c.module, nn.Linear | nn.LayerNorm)]
    return next((c for c in mixing if reached(c.inputs) and not reached(c.outputs)), None)


class RefusalError(Exception):
    """One sentence: why a model cannot be differentiated."""


def backward(number: torch.Tensor) -> None:
    """Differentiate; a model that does not let itself be is loud, and breaks no law."""
    try:
        number.backward()
    except Exception as error:
        raise RefusalError(f"it refuses to be differentiated: {last_line(error)[:160]}") from error


def score(answer: torch.Tensor, ask: Cells | None = None) -> torch.Tensor:
    """One number from an answer, with random weights so that nothing cancels."""
    picked = answer if ask is None else ask.of(answer)
    generator = torch.Generator().manual_seed(7)
    weights = torch.randn(picked.shape, generator=generator, dtype=torch.float64)
    return (picked * weights.to(picked.device, picked.dtype)).sum()


@contextmanager
def embedded(specimen: Specimen, run: Run, axis: str = "") -> Iterator[tuple[Run, list[Leaf]]]:
    """Leaves to differentiate by: the features given, or what embeddings make of the ids."""
    axis = axis or specimen.anatomy.axis
    leaves: list[Leaf] = []
    mains = [e for e in specimen.anatomy.inputs if axis in e.axes and e.kind != "mask"]
    if mains and mains[0].kind != "tokens":
        given = {e.name: run.inputs[e.name].detach().clone().requires_grad_() for e in mains}
        views = [Leaf(given[e.name], e, specimen) for e in mains]
        yield replace(run, inputs={**run.inputs, **given}), views
        return
    handles = []

    def hook(module: nn.Module, args: tuple, output: torch.Tensor) -> torch.Tensor | None:
        given = args[0] if args else None
        found = [each for each in mains if _same(given, run.inputs[each.name])]
        if not found or output.shape[:2] != run.inputs[found[0].name].shape[:2]:
            return None
        made = output.detach().clone().requires_grad_()
        leaves.append(Leaf(made, found[0], specimen))
        return made.clone()  # models may scale their embeddings in place

    for module in specimen.bench.twin(run.setting).modules():
        if isinstance(module, nn.Embedding):
            handles.append(module.register_forward_hook(hook))
    try:
        yield run, leaves
    finally:
        for handle in handles:
            handle.remove()


def _same(given: object, ids: torch.Tensor) -> bool:
    return (
        isinstance(given, torch.Tensor)
        and given.shape == ids.shape
        and torch.equal(given.cpu(), ids.to(given.dtype))
    )


@dataclass(frozen=True)
class Leaf:
    """A tensor to differentiate by, read as (batch, positions, rest)."""

    tensor: torch.Tensor
    each: Input  # the input that it is, or was made from
    specimen: Specimen

    @property
    def gradient(self) -> torch.Tensor:
        """Zeros where none arrived."""
        found = self.tensor.grad
        found = torch.zeros_like(self.tensor) if found is None else found
        return self.specimen.front(self.each, found).cpu()


def parameter_gradients(
    specimen: Specimen, run: Run, ask: Cells | None = None, recorder: Recorder | None = None
) -> tuple[dict[str, torch.Tensor | None], torch.Tensor]:
    """Each trained parameter's gradient of one random number of the answer, and the answer."""
    twin = specimen.bench.twin(run.setting)
    twin.zero_grad(set_to_none=True)
    answer = specimen.answer(run, recorder)
    backward(score(answer, ask))
    gradients = {n: None if p.grad is None else p.grad.clone() for n, p in trained(twin)}
    twin.zero_grad(set_to_none=True)
    return gradients, answer.detach()


def trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Parameters that are meant to learn."""
    return [(n, p) for n, p in model.named_parameters() if p.requires_grad]
