"""Other paths to the same answers: attention by another kernel, with another form of mask."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from querykey.laws.blaming.guilty_module import GuiltyModule, guilty_part
from querykey.laws.blaming.pairwise import first_difference
from querykey.laws.blaming.recorder import Recorder
from querykey.laws.catalogue import padding
from querykey.laws.catalogue.batch import whole_rows
from querykey.laws.catalogue.derivatives import magnitude, parameter_gradients, score, trained
from querykey.laws.catalogue.sweeps import once
from querykey.laws.law import Law
from querykey.laws.private import is_pretrained, is_stateful, offers_flex
from querykey.laws.run import Inputs, Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Cells, Evidence, Outcome, Trial, deviation

Gradients = dict[str, torch.Tensor | None]
Training = tuple[torch.Tensor, Gradients, Recorder]  # an answer, its gradients, and the calls


def some_padded(runner: Runner, setting: Setting) -> tuple[Inputs, Cells | None]:
    """Return inputs that are padded where a mask tells of it, and the answers that it protects.

    A causal model would hide right padding from real tokens anyway.
    """
    inputs, axis = runner.inputs(setting), runner.signature.axis
    if not axis or not runner.facts.masks_over(axis):
        return inputs, None
    left = not padding.takes_left_padding(runner)
    real = padding.real_tokens(runner, inputs, axis, left=left)
    padded = {**inputs, **padding.arguments(runner, axis, real)}
    return padded, padding.protected(runner, inputs, axis, real)


def gradients(runner: Runner, run: Run, ask: Cells | None) -> Training:
    """Return an answer and its gradients, what is recomputed in the backward pass included."""
    model, recorder = runner.copies.of(run.setting), Recorder()
    model.zero_grad(set_to_none=True)
    with runner.copies.surroundings(model, run.setting):
        answer = runner.answer(run, recorder)
        # Tensor.backward would be intercepted itself, and what it recomputes would not be.
        torch.autograd.backward([score(answer, ask)])
    by_name = {n: None if p.grad is None else p.grad.clone() for n, p in trained(model)}
    model.zero_grad(set_to_none=True)
    return answer.detach(), by_name, recorder


def gap(first: Gradients, second: Gradients) -> tuple[float, str]:
    """Return how far gradients are apart, relative to their size, and the parameter."""
    sizes = [magnitude(g) for g in first.values() if g is not None and g.numel()]
    least = 1e-6 * max(sizes, default=1.0)
    worst, name = 0.0, ""
    for parameter, gradient in first.items():
        other = second.get(parameter)
        if gradient is None and other is None:
            continue
        shape = gradient if gradient is not None else other
        assert shape is not None
        left = torch.zeros_like(shape) if gradient is None else gradient
        right = torch.zeros_like(shape) if other is None else other
        if not left.numel():
            continue
        far = float((left - right).abs().max()) / max(magnitude(left), least, 1e-30)
        if far > worst:
            worst, name = far, parameter
    return worst, name


def compared(
    runner: Runner,
    what: str,
    first: Training,
    second: Training,
    keep: Cells | None,
    setting: Setting,
    limit: float = 0.0,
) -> Outcome:
    """Return how far two runs are apart, and which module parts them; 0: the common limit."""
    limit, common = limit or runner.facts.threshold, runner.facts.threshold
    answers = [part[0] if keep is None else keep.of(part[0]) for part in (first, second)]
    by_answer, (by_gradient, name) = deviation(*answers)[0], gap(first[1], second[1])
    guilty = None
    if max(by_answer, by_gradient) > limit:
        guilty = first_difference(first[2], second[2], limit)
    if guilty is None and by_gradient > limit:
        guilty = _owner(runner.copies.model, name)
    note = f"answers move by {by_answer:.2g} {what}"
    if by_answer <= limit:
        note = f"the gradient of {name} moves by {by_gradient:.2g} {what}, and answers do not"
    far = max(by_answer, by_gradient)
    scaled = far if limit == common or far > limit else far * common / limit
    return Outcome(scaled, note, setting, evidence=Evidence(module=guilty))


def _owner(model: nn.Module, name: str) -> GuiltyModule:
    return guilty_part(model, name.rpartition(".")[0])


def has_paths(runner: Runner) -> str:
    """Return why the law does not apply: one way of attention, and no masks of four axes."""
    if not trained(runner.copies.model):
        return "it has no trained parameters"
    names = implementations(runner)
    if len(names) < 2 and not _takes_tables(runner):
        return "it computes attention in one way only, and takes no mask of four axes"
    return ""


def _takes_tables(runner: Runner) -> bool:
    """Return whether a library promises that masks of (batch, 1, query, key) are taken as such."""
    masks = runner.facts.masks_over(runner.signature.axis) if runner.signature.axis else []
    alone = runner.signature.sequential and not runner.signature.others()
    config = getattr(runner.copies.model, "config", None)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    try:
        windows = getattr(config, "sliding_window", None) is not None or runner.facts.spans
    except Exception:  # a configuration may answer for every layer alone
        return False
    if windows or kinds != {"full_attention"} or is_stateful(runner.copies.model):
        return False  # a layer with a window, or a state, makes another mask of the one with two
    return (
        alone
        and is_pretrained(runner.copies.model)
        and [m.name for m in masks] == ["attention_mask"]
    )


def implementations(runner: Runner) -> tuple[str, ...]:
    """Return the implementations of attention that are compared, FlexAttention last."""
    names = runner.facts.arguments.implementations
    return (*names, "flex_attention") if offers_flex(runner.copies.model) else names


def kernels(runner: Runner, setting: Setting) -> Iterator[Outcome | Trial]:
    """Compare gradients of every implementation of attention, and masks of two and four axes."""
    names = implementations(runner)
    inputs, keep = some_padded(runner, setting)
    if len(names) > 1:
        first = _by(runner, inputs, keep, names[0])
        for name in names[1:]:
            what = f"attention is computed by {name} and not by {names[0]}"
            if "flex" in name:  # it has no derivative on a CPU, nor where it is not compiled
                yield _answers(runner, inputs, keep, (names[0], name), what)
                continue
            other = _by(runner, inputs, keep, name)
            yield compared(runner, f"when {what}", first, other, keep, setting)
    if _takes_tables(runner) and keep is not None:
        yield from _tables(runner, setting, inputs, keep)


def _answers(
    runner: Runner, inputs: Inputs, keep: Cells | None, names: tuple[str, str], what: str
) -> Trial:
    """Return the comparison of the answers alone by two implementations."""
    first, second = (Run(inputs, Setting(attention=name)) for name in names)
    rows = range(runner.signature.batch_of(inputs))
    cells = keep or whole_rows(runner, first.setting, rows)
    return Trial(first, second, (cells, cells), None, what)


def _by(runner: Runner, inputs: Inputs, keep: Cells | None, name: str) -> Training:
    recorder, run = Recorder(), Run(inputs, Setting(attention=name))
    by_name, answer = parameter_gradients(runner, run, keep, recorder)
    return answer, by_name, recorder


def _tables(runner: Runner, setting: Setting, inputs: Inputs, keep: Cells) -> Iterator[Outcome]:
    """Yield how far a mask of (batch, 1, query, key) moves answers that mean the same."""
    [mask] = runner.facts.masks_over(runner.signature.axis)
    real = mask.real(inputs[mask.name], runner.signature.length_of(inputs))
    seen = real[:, None, None, :].expand(-1, 1, real.shape[1], -1)
    if runner.facts.causal:
        seen = seen & torch.ones(seen.shape[-2:], dtype=torch.bool).tril()
    least = torch.finfo(runner.copies.dtype).min
    table = torch.zeros(seen.shape, dtype=runner.copies.dtype).masked_fill(~seen, least)
    recorders = Recorder(), Recorder()
    try:
        with torch.no_grad():
            flat = runner.answer(Run(inputs, setting), recorders[0])
            four = runner.answer(Run({**inputs, mask.name: table}, setting), recorders[1])
    except Exception:
        return  # it takes no such mask
    far = deviation(keep.of(flat), keep.of(four))[0]
    guilty = None
    if far > runner.facts.threshold:
        guilty = first_difference(*recorders, runner.facts.threshold)
    note = f"answers move by {far:.2g} when the same mask is passed with four axes"
    yield Outcome(far, note, setting, evidence=Evidence(module=guilty), advice=True)


LAWS = (
    Law(
        "paths.backend",
        says="Every implementation of attention, and every form of a mask, trains alike.",
        why="Otherwise a switch that is meant for speed changes what is learned.",
        how="Gradients of every parameter are compared, beside what backend.agree compares; with "
        "FlexAttention, which has no derivative on a CPU, answers alone; and masks of four axes "
        "with those of two, where the library takes both (advice).",
        trials=kernels,
        applies=has_paths,
        sweep=once,
    ),
)
