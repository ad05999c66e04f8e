"""What training needs: every parameter is reached, tied weights are one, sums of parts agree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from querykey.laws.blaming.blame import Blame, blame, source_of
from querykey.laws.blaming.limitations import by_design
from querykey.laws.blaming.recorder import Recorder
from querykey.laws.catalogue import sweeps
from querykey.laws.catalogue.batch import alone, has_rows
from querykey.laws.catalogue.derivatives import backward, parameter_gradients, score, trained
from querykey.laws.catalogue.unreached import Silence
from querykey.laws.law import Law
from querykey.laws.runner import Specimen
from querykey.laws.trial import Outcome, Run, conduct, deviation
from querykey.laws.understanding.copies import Setting
from querykey.laws.understanding.outputs import answers


def has_weights(specimen: Specimen) -> str:
    """To models with something to train."""
    return "" if trained(specimen.bench.model) else "it has no trained parameters"


def reaches(specimen: Specimen, setting: Setting) -> Iterator[Outcome]:
    """Some answer depends on every parameter of every module that runs, and on all that is used."""
    if setting.weights == "own":  # a branch that begins at zero learns after the first step
        bench = replace(specimen.bench, twins={}, shaken=True)
        specimen = replace(specimen, bench=bench, known={})
    twin = specimen.bench.twin(setting)
    alive: set[str] = set()
    ran: set[str] = set()
    recorder, silence = Recorder(), Silence()
    for seed, mode in ((0, False), (1, False), (0, True)):
        recorder = Recorder()
        setting = replace(setting, train=mode)
        twin = specimen.bench.twin(setting)
        inputs = specimen.complete(Run(specimen.inputs(setting, seed), setting))
        twin.zero_grad(set_to_none=True)
        output = specimen.call(inputs, setting, recorder)
        parts = [score(t) for _, t in answers(output) if t.requires_grad]
        if not parts:
            continue
        backward(torch.stack([part.double() for part in parts]).sum())
        alive |= {n for n, p in trained(twin) if p.grad is not None and bool((p.grad != 0).any())}
        silence.listen(twin)
        ran |= {c.path for c in recorder.done if any(t.numel() for t in c.inputs)}
    twin.zero_grad(set_to_none=True)
    setting = replace(setting, train=False)
    dead = [n for n, _ in trained(twin) if n not in alive]
    guilty = [n for n in dead if n.rpartition(".")[0] in ran]
    free = [n for n in guilty if by_design(specimen, "gradient.reaches", n.rpartition(".")[0])]
    guilty = [n for n in guilty if n not in free] or guilty  # what nobody vouches for comes first
    if not guilty:
        yield _in_part(specimen, setting, silence)
        return
    owner = _last_dead(guilty, alive, [call.path for call in recorder.done])
    found = Blame(owner or "(model)", source_of(twin.get_submodule(owner)))
    note = f"{guilty[0]} is used but gets no gradient ({len(guilty)} such)"
    yield Outcome(1.0, None, setting, {}, None, note, found)


def _in_part(specimen: Specimen, setting: Setting, silence: Silence) -> Outcome:
    """All parameters are reached; is each of them as a whole?"""
    found = [(name.rpartition(".")[0], what) for name, what in silence.broken_by(specimen, setting)]
    # What nobody vouches for comes first.
    found.sort(key=lambda each: bool(by_design(specimen, "gradient.reaches", each[0])))
    if not found:
        return Outcome(0.0, None, setting)
    owner, what = found[0]
    module = Blame(owner or "(model)", source_of(specimen.bench.model.get_submodule(owner)))
    note = f"{what} are used but get no gradient"
    return Outcome(1.0, None, setting, {}, None, note, module)


def _last_dead(guilty: list[str], alive: set[str], order: list[str]) -> str:
    """Of the first branch that is dead as a whole, the part that ran last: its output is lost."""

    def whole(owner: str) -> str:
        while "." in owner and not any(n.startswith(f"{owner.rpartition('.')[0]}.") for n in alive):
            owner = owner.rpartition(".")[0]
        return owner

    branches = list(dict.fromkeys(whole(name.rpartition(".")[0]) for name in guilty))
    above = branches[0].rpartition(".")[0]
    beside = [b for b in branches if b.rpartition(".")[0] == above and b in order]
    return max(beside, key=order.index, default=branches[0])


def says_tied(specimen: Specimen) -> str:
    """To models whose configuration or attributes say that embeddings are tied."""
    return "" if _tie_switch(specimen.bench.model) else "nothing says that weights are tied"


def _tie_switch(model: Any) -> str:
    holders = [model, getattr(model, "config", None)]
    config = getattr(model, "config", None)
    if config is not None and hasattr(config, "get_text_config"):
        if not getattr(config, "tie_word_embeddings", True):
            return ""
        holders = [config.get_text_config()]
    for holder in holders:
        for name, value in getattr(holder, "__dict__", {}).items():
            if name.startswith(("tie_", "tied", "weight_tying", "share_embed")) and value is True:
                return name
    return ""


def tied(specimen: Specimen, setting: Setting) -> Iterator[Outcome]:
    """The output layer's weight is the embedding's."""
    model: Any = specimen.bench.model
    pairs = list(_library_pair(model)) or list(_pairs(model))
    if not pairs:
        return
    tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
    one = any(taken.weight is table for given, taken in pairs for table in (given.weight, *tables))
    note = f"`{_tie_switch(model)}` is set, but the output layer has weights of its own"
    path = next(p for p, m in model.named_modules() if m is pairs[0][1])
    found = Blame(path, source_of(pairs[0][1]))
    yield Outcome(0.0 if one else 1.0, None, setting, {}, None, note, None if one else found)


def _library_pair(model: Any) -> Iterator[tuple[Any, Any]]:
    if hasattr(model, "get_output_embeddings") and hasattr(model, "get_input_embeddings"):
        try:
            given, taken = model.get_input_embeddings(), model.get_output_embeddings()
        except NotImplementedError:
            return
        same = getattr(getattr(taken, "weight", 0), "shape", 1)
        if same == getattr(getattr(given, "weight", 0), "shape", 2):
            yield given, taken


def _pairs(model: nn.Module) -> Iterator[tuple[Any, Any]]:
    """Embeddings and linear layers whose weights could be one."""
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    heads = [m for m in model.modules() if isinstance(m, nn.Linear)]
    for table in tables:
        for head in heads:
            if table.weight.shape == head.weight.shape:
                yield table, head


def accumulation(specimen: Specimen, setting: Setting) -> Iterator[Outcome]:
    """The gradient of a batch is the sum over its rows, and so is its loss."""
    inputs = specimen.inputs(setting)
    batch = setting.batch
    whole, answer = parameter_gradients(specimen, Run(inputs, setting))
    weights = torch.randn(
        answer.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64
    )
    twin = specimen.bench.twin(setting)
    twin.zero_grad(set_to_none=True)
    for row in range(batch):
        own = specimen.answer(Run(specimen.take_rows(inputs, [row]), setting))
        backward((own[0] * weights[row].to(own.dtype)).sum())
    sums = {n: p.grad for n, p in trained(twin)}
    worst, name = _worst(whole, sums)
    found = None
    if worst > specimen.threshold:
        found = _mixer(specimen, setting) or _owner(twin, name)
    note = f"the gradient of {name} is not the sum over rows"
    yield Outcome(worst, None, setting, {}, None, note, found)
    twin.zero_grad(set_to_none=True)
    yield from _loss(specimen, setting)


def _worst(
    first: dict[str, torch.Tensor | None], second: dict[str, torch.Tensor | None]
) -> tuple[float, str]:
    sizes = [float(g.pow(2).mean().sqrt()) for g in first.values() if g is not None and g.numel()]
    # Some gradients are zero but for rounding, as a key's bias under softmax.
    largest = max(sizes, default=1.0)
    worst, name = 0.0, next(iter(first), "")
    for each, gradient in first.items():
        other = second[each]
        if gradient is None or other is None or not gradient.numel():
            continue
        gap = float((gradient - other).abs().max()) / max(
            float(gradient.pow(2).mean().sqrt()), 1e-6 * largest, 1e-30
        )
        if gap > worst:
            worst, name = gap, each
    return worst, name


def _mixer(specimen: Specimen, setting: Setting) -> Blame | None:
    """The module in which rows mix, where answers show it as gradients do."""
    for trial in alone(specimen, setting):
        if conduct(specimen, trial).deviation > specimen.threshold:
            with suppress(Exception):
                return blame(specimen, trial)
    return None


def _owner(twin: nn.Module, name: str) -> Blame:
    owner = name.rpartition(".")[0]
    return Blame(owner or "(model)", source_of(twin.get_submodule(owner)))


def _loss(specimen: Specimen, setting: Setting) -> Iterator[Outcome]:
    """Rows of unequal length, each with the number of tokens of all, as trainers accumulate."""
    parameters = specimen.bench.parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    main = specimen.anatomy.main
    told = getattr(specimen.bench.model, "accepts_loss_kwargs", open_ended)
    if "labels" not in parameters or not told or main.kind != "tokens":
        return
    inputs = specimen.inputs(setting)
    labels = inputs[main.name].clone()
    labels[1, 4:] = -100
    shift = 0 if specimen.anatomy.others() else 1
    count = (labels[:, shift:] != -100).sum()
    losses = []
    for rows in ([0, 1, 2], [0], [1], [2]):
        given = {**specimen.take_rows(inputs, rows), "labels": labels[rows]}
        try:
            with torch.no_grad():
                output = specimen.bench.raw({**given, "num_items_in_batch": count}, setting)
        except Exception:
            return  # its labels are something else
        loss = getattr(output, "loss", None)
        if not isinstance(loss, torch.Tensor):
            return
        losses.append(loss.detach().double())
    gap = deviation(losses[0].reshape(1, 1), torch.stack(losses[1:]).sum().reshape(1, 1))[0]
    note = (
        "rows' losses, each told the number of all tokens (num_items_in_batch), do not add up to "
        "the batch's: a trainer that accumulates must divide by itself"
    )
    found = Blame("(model)", source_of(specimen.bench.model))
    yield Outcome(gap, None, setting, {}, None, note, found, advice=True)


LAWS = (
    Law(
        "gradient.reaches",
        "every parameter that is used gets a gradient",
        "differentiate",
        "the gradient of each parameter",
        has_weights,
        reaches,
        sweeps.once,
    ),
    Law(
        "tying",
        "what the configuration says is tied is one tensor",
        "none",
        "the output layer's weight",
        says_tied,
        tied,
        sweeps.once,
    ),
    Law(
        "accumulation",
        "gradients and losses of rows add up to those of the batch",
        "split the batch",
        "the sum of gradients and of losses",
        lambda specimen: has_rows(specimen) or has_weights(specimen),
        accumulation,
        sweeps.once,
    ),
)
