"""Derivatives of an answer with respect to the embeddings of tokens, and to parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn

from querykey.laws.blaming.comparison import axes_of
from querykey.laws.blaming.recorder import ModuleCall, Recorder
from querykey.laws.law import RefusalError
from querykey.laws.run import Run
from querykey.laws.runner import Runner
from querykey.laws.trial import Cells, Evidence, Outcome, place_in_words
from querykey.laws.understanding.signature import front
from querykey.targets import Input
from querykey.words import last_line


def reach(
    runner: Runner,
    run: Run,
    ask: Cells,
    forbidden: Cells,
    allowed: Cells,
    axis: str = "",
) -> Outcome:
    """Return how far the derivative of the asked answers reaches into forbidden tokens."""
    with embedded(runner, run, axis) as (run, leaves):
        answer = runner.answer(run)
        backward(score(answer, ask))
    outside = inside = 0.0
    where: dict[str, int] = {}
    for leaf in leaves:
        gradient = leaf.gradient
        wrong, right = forbidden.of(gradient), allowed.of(gradient)
        if not gradient.isfinite().all():
            # Padding must not even make NaN: zero times infinity is no zero.
            return Outcome(math.inf, "the derivative of the answer is not finite", run.setting)
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
    if outside > runner.facts.threshold:
        guilty = _passing_on(runner, run, ask, forbidden)
    note = "no embedding of the tokens was found to differentiate by"
    if leaves:
        note = _in_words(outside, where)
    return Outcome(outside, note, run.setting, inside, Evidence(where, module=guilty))


def _in_words(size: float, where: dict[str, int]) -> str:
    """Return what a derivative showed, as a sentence."""
    if not where:
        return "there is no token on which the answers must not depend"
    token = place_in_words(where).replace("the answer", "the token")
    derivative = f"have a derivative of {size:.2g} with respect to its embedding"
    return f"answers that must not depend on {token} {derivative}"


def _passing_on(runner: Runner, run: Run, ask: Cells, forbidden: Cells) -> ModuleCall | None:
    """Return the first module that passes a derivative on to forbidden tokens, and gets none."""
    recorder = Recorder(live=True)
    with embedded(runner, run) as (run, _):
        answer = runner.answer(run, recorder)
    kept = [t for call in recorder.done for t in (*call.inputs, *call.outputs) if t.requires_grad]
    derivatives = torch.autograd.grad(score(answer, ask), kept, allow_unused=True)
    gradients = {id(t): g for t, g in zip(kept, derivatives, strict=True)}
    signature = runner.signature
    batch, length = signature.batch_of(run.inputs), signature.length_of(run.inputs)

    def reached(several: list[torch.Tensor]) -> bool:
        for tensor in several:
            gradient, axes = gradients.get(id(tensor)), axes_of(tensor, batch, length)
            if gradient is not None and axes is not None:
                wrong = forbidden.of(gradient.movedim(axes, [0, 1]))
                limit = runner.facts.threshold * float(gradient.abs().max())
                if float(wrong.abs().max()) > limit:
                    return True
        return False

    mixing = [c for c in recorder.done if not isinstance(c.module, nn.Linear | nn.LayerNorm)]
    return next((c for c in mixing if reached(c.inputs) and not reached(c.outputs)), None)


def backward(number: torch.Tensor) -> None:
    """Differentiate a number with respect to all that it was computed from."""
    with differentiating():
        number.backward()


@contextmanager
def differentiating() -> Iterator[None]:
    """Raise what a derivative raises as a refusal: it is loud, so no law is broken silently."""
    try:
        yield
    except Exception as error:
        raise RefusalError(f"it refuses to be differentiated: {last_line(error)[:160]}") from error


def score(answer: torch.Tensor, ask: Cells | None = None) -> torch.Tensor:
    """Return one number of an answer: a sum with random weights, so that nothing cancels."""
    picked = answer if ask is None else ask.of(answer)
    generator = torch.Generator().manual_seed(7)
    weights = torch.randn(picked.shape, generator=generator, dtype=torch.float64)
    return (picked * weights.to(picked.device, picked.dtype)).sum()


@contextmanager
def embedded(runner: Runner, run: Run, axis: str = "") -> Iterator[tuple[Run, list[Leaf]]]:
    """Yield a run and its leaves: the features passed in, or what embeddings make of the ids."""
    axis = axis or runner.signature.axis
    leaves: list[Leaf] = []
    mains = [e for e in runner.signature.inputs if axis in e.axes and e.kind != "mask"]
    if mains and mains[0].kind != "tokens":
        floats = [e for e in mains if run.inputs[e.name].is_floating_point()]
        features = {e.name: run.inputs[e.name].detach().clone().requires_grad_() for e in floats}
        leaves = [Leaf(features[e.name], e) for e in floats]
        yield replace(run, inputs={**run.inputs, **features}), leaves
        return
    handles = []

    def hook(module: nn.Module, args: tuple, output: torch.Tensor) -> torch.Tensor | None:
        ids = args[0] if args else None
        entry = next((entry for entry in mains if _same(ids, run.inputs[entry.name])), None)
        if entry is None or output.shape[:2] != run.inputs[entry.name].shape[:2]:
            return None
        leaf = output.detach().clone().requires_grad_()
        leaves.append(Leaf(leaf, entry))
        return leaf.clone()  # models may scale their embeddings in place

    for module in runner.copies.of(run.setting).modules():
        if isinstance(module, nn.Embedding):
            handles.append(module.register_forward_hook(hook))
    try:
        yield run, leaves
    finally:
        for handle in handles:
            handle.remove()


def _same(value: object, ids: torch.Tensor) -> bool:
    """Return whether a value is the tensor of these ids, on any device and of any dtype."""
    return (
        isinstance(value, torch.Tensor)
        and value.shape == ids.shape
        and torch.equal(value.cpu(), ids.to(value.dtype))
    )


@dataclass(frozen=True)
class Leaf:
    """A tensor to differentiate by, read as (batch, positions, rest)."""

    tensor: torch.Tensor
    entry: Input  # the input that it is, or was made from

    @property
    def gradient(self) -> torch.Tensor:
        """The gradient that arrived; zeros where none did."""
        gradient = self.tensor.grad
        gradient = torch.zeros_like(self.tensor) if gradient is None else gradient
        return front(self.entry, gradient).cpu()


def parameter_gradients(
    runner: Runner, run: Run, ask: Cells | None = None, recorder: Recorder | None = None
) -> tuple[dict[str, torch.Tensor | None], torch.Tensor]:
    """Return the gradient of a sum of the answer by every trained parameter, and the answer."""
    model = runner.copies.of(run.setting)
    model.zero_grad(set_to_none=True)
    answer = runner.answer(run, recorder)
    backward(score(answer, ask))
    gradients = {n: None if p.grad is None else p.grad.clone() for n, p in trained(model)}
    model.zero_grad(set_to_none=True)
    return gradients, answer.detach()


def magnitude(gradient: torch.Tensor) -> float:
    """Return the root of the mean square of a gradient, which may be complex."""
    return float(gradient.abs().pow(2).mean().sqrt())


def trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters that are meant to learn, with their names."""
    return [(n, p) for n, p in model.named_parameters() if p.requires_grad]
