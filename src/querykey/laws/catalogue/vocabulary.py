"""Ids are names: renamed in the input, in the tables and in the scores, they change nothing."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from querykey.laws.blaming.pairwise import first_difference
from querykey.laws.blaming.recorder import ModuleCall, Recorder
from querykey.laws.catalogue import sweeps
from querykey.laws.law import Law, RefusalError
from querykey.laws.run import Inputs, Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Evidence, Outcome, deviation
from querykey.laws.understanding.padding_ids import ComparedIds
from querykey.targets import Input

DECLARED = re.compile(
    r"(^|_)(pad(ding)?|eos|bos|sep|cls|unk|mask|blank|special|start|end|stop|eot|image|img|video|"
    r"audio|token)(_|$).*|.*_(id|idx|index|token|ids|tokens)$"
)
SIZES = re.compile(r"^(num|max|n)_|vocab|size|layers|type")
MARKS = 4  # at most so many rows of a table are no words: a blank, a start, a mask
CONTROLS = 4  # pairs of ordinary ids that change names first
PADS = re.compile(r"(^|_)pad(ding)?(_|$)", re.I)


def reads_words(runner: Runner) -> str:
    """Return why the law does not apply to a model that reads no ids by rows."""
    main = runner.signature.main
    if main.kind != "tokens" or main.axes[0] != "batch" or len(main.axes) != 2:
        return "it reads no ids of tokens"
    if main.high - main.low < 12:
        return "its vocabulary is too small to rename"
    return ""


@dataclass(frozen=True)
class Tables:
    """The tensors of a copy with a line per word, each with the axis of the words."""

    lines: tuple[tuple[torch.Tensor, int], ...]
    words: int  # how many ids are read
    scored: int  # how many words an answer scores; 0 where it scores none

    @contextmanager
    def renamed(self, order: torch.Tensor) -> Iterator[None]:
        """Give id i the name order[i] in every table inside this context."""
        kept = [tensor.detach().clone() for tensor, _ in self.lines]
        try:
            with torch.no_grad():
                for (tensor, axis), before in zip(self.lines, kept, strict=True):
                    new = widened(order, before.shape[axis]).to(before.device)
                    tensor.copy_(before.index_select(axis, new.argsort()))
            yield
        finally:
            with torch.no_grad():
                for (tensor, _), before in zip(self.lines, kept, strict=True):
                    tensor.copy_(before)

    def back(self, value: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """Return scores of renamed words in the order of the old names; others as they are."""
        if value.dim() and value.shape[-1] in {self.words, self.scored} and value.shape[-1] > 1:
            return value[..., widened(order, value.shape[-1]).to(value.device)]
        return value


def widened(order: torch.Tensor, size: int) -> torch.Tensor:
    """Return a renaming of more words, those beyond the vocabulary keeping their names."""
    return torch.cat([order, torch.arange(len(order), size)])[:size]


def find_tables(runner: Runner, setting: Setting) -> Iterator[Tables]:
    """Yield what may be the tables of a copy, the fewest first.

    Those that read the ids go with the layer whose output is the answer, then with all layers whose
    output is as wide as the vocabulary, and then with all parameters that have such an axis.
    """
    model, inputs = runner.copies.of(setting), runner.inputs(setting)
    recorder = Recorder()
    with torch.no_grad():
        answer = runner.answer(Run(inputs, setting), recorder)
    ids = [inputs[entry.name] for entry in _renamed_inputs(runner)]
    readers = [
        call.module
        for call in recorder.done
        if isinstance(call.module, nn.Embedding) and any(_is(t, ids) for t in call.inputs)
    ]
    high, sizes = runner.signature.main.high, {n for p in model.parameters() for n in p.shape}
    if not readers and answer.dim() == 3 and answer.shape[-1] in sizes:
        high = max(high, answer.shape[-1])  # ids that index a matrix may be more than were tried
    words = max((m.num_embeddings for m in readers), default=high)
    scored = answer.shape[-1] if answer.dim() == 3 and answer.shape[-1] >= words else 0
    lengths = {words, scored} - {0}
    makers = [
        call
        for call in recorder.done
        if call.outputs and call.outputs[0].dim() and call.outputs[0].shape[-1] in lengths
        and not any(_is(t, ids) for t in call.inputs)
    ]  # fmt: skip
    last = [call.module for call in makers if _gives(call, answer)]
    for chosen in (last, [call.module for call in makers], list(model.modules())):
        lines: dict[int, tuple[torch.Tensor, int]] = {}
        for module in (*readers, *chosen):
            for parameter in module.parameters(recurse=False):
                axes = [a for a, size in enumerate(parameter.shape) if size in lengths]
                if axes:
                    lines.setdefault(id(parameter), (parameter, axes[0]))
        yield Tables(tuple(lines.values()), words, scored)


def _gives(call: ModuleCall, answer: torch.Tensor) -> bool:
    """Return whether a layer's output is the answer, but for a scale, a softcap or a softmax.

    All of these keep the order of the scores at every position.
    """
    scores = call.outputs[0]
    if scores.numel() != answer.numel() or scores.shape[-1] != answer.shape[-1]:
        return False
    if scores.is_complex() or answer.is_complex():  # which have no order
        return torch.equal(scores.reshape(answer.shape), answer.cpu())
    return torch.equal(scores.reshape(answer.shape).argsort(-1), answer.cpu().argsort(-1))


def _is(tensor: torch.Tensor, ids: list[torch.Tensor]) -> bool:
    return not tensor.is_floating_point() and any(
        tensor.shape == i.shape and torch.equal(tensor, i.to(tensor.dtype)) for i in ids
    )


def _renamed_inputs(runner: Runner) -> list[Input]:
    """Return the inputs that hold ids of the main input's vocabulary."""
    main = runner.signature.main
    return [e for e in runner.signature.inputs if e.kind == "tokens" and e.high == main.high]


def declared_ids(runner: Runner) -> set[int]:
    """Return the ids that a model's attributes, tables, arguments or file name as special."""
    model: Any = runner.copies.model
    ids = {token for _, token in runner.facts.arguments.padding.ids if _is_named(runner, token)}
    for module in model.modules():
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            ids.add(module.padding_idx)
        ids |= _special_in(vars(module))
    config = getattr(model, "config", None)
    for holder in (config, getattr(config, "text_config", None), getattr(config, "decoder", None)):
        ids |= _special_in(getattr(holder, "__dict__", None) or {})
    ids |= _special_in({n: p.default for n, p in runner.copies.parameters.items()})
    return ids


def _is_named(runner: Runner, token: int) -> bool:
    """Return whether a constant of the model's file calls this id padding."""
    home = sys.modules.get(type(runner.copies.model).__module__)
    world = {} if home is None else vars(home)
    return any(type(v) is int and v == token and PADS.search(n) for n, v in list(world.items()))


def _special_in(held: dict[str, Any]) -> set[int]:
    ids: set[int] = set()
    for name, value in list(held.items()):
        if DECLARED.match(name.lower()) and not SIZES.search(name.lower()):
            values = value if isinstance(value, list | tuple | set) else [value]
            ids |= {v for v in values if type(v) is int}
    return ids


def vocabulary(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Rename the ids at the edges, and those that the model compares with.

    One that the model itself puts among the words, as a start, may be a mark: that is advice.
    """
    inputs = runner.inputs(setting)
    tables, swaps = renaming(runner, setting)
    outcome = _moved(runner, setting, inputs, tables, swaps)
    if outcome.deviation > runner.facts.threshold:
        marks = _watched(runner, setting).written
        words = _moved(runner, setting, inputs, tables, [s for s in swaps if s[0] not in marks])
        by_words = words.deviation > runner.facts.threshold
        outcome = words if by_words else replace(outcome, advice=True)
    yield outcome


def _watched(runner: Runner, setting: Setting) -> ComparedIds:
    """Return what a plain call compares its ids with, and what it puts in their place."""
    inputs = runner.inputs(setting)
    watch = ComparedIds(inputs[runner.signature.main.name])
    with watch, torch.no_grad():
        runner.call(runner.complete(Run(inputs, setting)), setting)
    return watch


def renaming(runner: Runner, setting: Setting) -> tuple[Tables, list[tuple[int, int]]]:
    """Return the tables of words, and the pairs of ids that change names.

    That all tables were found is seen by ordinary ids, whose names do not matter.
    """
    main, inputs = runner.signature.main, runner.inputs(setting)
    declared, numbers = declared_ids(runner), _watched(runner, setting).numbers
    edges = {0, 1, 2, 3, main.high - 1, main.high - 2, *numbers}
    special = sorted(s for s in edges if 0 <= s < said(runner, setting) and s not in declared)
    ordinary = [i for i in range(main.low, main.high) if i not in edges and i not in declared]
    # Those in the middle come first: what ends there, or is hidden there, changes what follows.
    turned = inputs[main.name].roll(-setting.length // 3, 1).T.flatten().tolist()
    used = list(dict.fromkeys(i for i in turned if i in set(ordinary)))
    if not special or len(used) <= len(special):
        raise RefusalError("its vocabulary is too small to rename")
    others = [i for i in ordinary if i not in set(used)]
    # Several pairs of neighbours: one alone can change places unseen in a matrix of other things.
    swaps = []
    for word in used[:CONTROLS]:
        if others:
            near = min(others, key=lambda i, word=word: abs(i - word))
            others.remove(near)
            swaps.append((word, near))
    swaps = swaps or [(used[0], used[1])]
    for tables in find_tables(runner, setting):
        if _moved(runner, setting, inputs, tables, swaps).deviation <= runner.facts.threshold:
            return tables, list(zip(special, used, strict=False))
    raise RefusalError("renaming ordinary ids changes answers: not all its tables were found")


def order_of(words: int, swaps: list[tuple[int, int]]) -> torch.Tensor:
    """Return the new name of every id."""
    order = torch.arange(words)
    for first, second in swaps:
        order[first], order[second] = second, first
    return order


def renamed(runner: Runner, inputs: Inputs, order: torch.Tensor) -> Inputs:
    """Return inputs whose ids have their new names."""
    new = {e.name: order[inputs[e.name]] for e in _renamed_inputs(runner)}
    return runner.signature.edit({**inputs, **new}, lambda value: value)


def said(runner: Runner, setting: Setting) -> int:
    """Return how many ids are words: a few beyond those that are scored are a model's own marks."""
    high, answer = (
        runner.signature.main.high,
        runner.remembered(Run(runner.inputs(setting), setting)),
    )
    scored = answer.shape[-1] if answer.dim() == 3 else high
    return scored if high - MARKS <= scored < high else high


def _moved(
    runner: Runner, setting: Setting, inputs: Inputs, tables: Tables, swaps: list[tuple[int, int]]
) -> Outcome:
    """Return how far answers move when these ids change their names."""
    order = order_of(tables.words, swaps)
    other = renamed(runner, inputs, order)
    before, after = Recorder(), Recorder()
    with torch.no_grad():
        first = runner.answer(Run(inputs, setting), before)
        with runner.copies.settling(), tables.renamed(order):
            second = tables.back(runner.answer(Run(other, setting), after), order)
    gap, index = deviation(first.flatten(0, 1), second.flatten(0, 1))
    if not gap > runner.facts.threshold:
        return Outcome(gap, setting=setting)
    for call in after.done:
        call.inputs = [tables.back(t, order) for t in call.inputs]
        call.outputs = [tables.back(t, order) for t in call.outputs]
    guilty = first_difference(before, after, runner.facts.threshold, order)
    where: dict[str, int] = {}
    if first.dim() == 3:
        where["sample"], where["position"] = divmod(index, first.shape[1])
    note = (
        f"answers moved by {gap:.2g} when ids were renamed in the input, the tables and the "
        f"scores: {', '.join(f'{b} is {a}' for a, b in swaps[:4])}, ...; an id means something "
        "that nothing declares (a padding_idx, an attribute such as pad_id, the configuration)"
    )
    # Who masks id 0 and takes no mask may mean padding by it.
    advice = not runner.facts.masks and (not runner.facts.causal or bool(runner.signature.others()))
    return Outcome(gap, note, setting, evidence=Evidence(where, module=guilty), advice=advice)


LAWS = (
    Law(
        "vocabulary",
        says="Ids that are renamed in the input, the tables and the scores change nothing.",
        why="Otherwise a word is hidden because its number is 0, or ends what it should not.",
        how="The first and last ids, and those that the model compares with, change names with "
        "ordinary ones; ids that are declared to be special keep theirs.",
        trials=vocabulary,
        applies=reads_words,
        sweep=sweeps.once,
    ),
)
