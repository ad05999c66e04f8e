"""The one way to an answer of a model: its copies, what is known about it, and what it answered."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from querykey.laws.blaming.recorder import Recorder
from querykey.laws.run import PLAIN, Inputs, Run, Setting
from querykey.laws.subject import Subject
from querykey.laws.understanding.cache_edits import (
    RECORDING,
    Bookmark,
    bookmark,
    cropped,
    reordered,
)
from querykey.laws.understanding.copies import ModelCopies
from querykey.laws.understanding.facts import CacheProtocol, ModelFacts
from querykey.laws.understanding.outputs import Slot, follow
from querykey.laws.understanding.signature import CallSignature


@dataclass
class Runner:
    """Runs copies of a model; `facts` is what is known about it, and the rest is kept for speed."""

    copies: ModelCopies
    facts: ModelFacts
    drawn: dict[Any, Inputs] = field(default_factory=dict)
    answers: dict[Any, tuple[Run, torch.Tensor]] = field(default_factory=dict)

    @property
    def subject(self) -> Subject:
        """The user's model, with what its owner says about it."""
        return self.copies.subject

    @property
    def signature(self) -> CallSignature:
        """The inputs of the model's call, with the ways to change them, and its answer."""
        return self.facts.signature

    def learning(self, facts: ModelFacts) -> Runner:
        """Return a runner that knows more facts; what was answered so far stays true."""
        return replace(self, facts=facts)

    def supposing(self, facts: ModelFacts) -> Runner:
        """Return a runner that takes other facts for true, and forgets what was answered."""
        return replace(self, facts=facts, answers={})

    def using(self, model: nn.Module, setting: Setting) -> Runner:
        """Return a runner whose copy for this setting is the given model."""
        models = {(setting.weights, setting.train): model}
        copies = replace(self.copies, models=models, snapshots={}, settled=True)
        return replace(self, copies=copies, answers={})

    def length(self, setting: Setting = PLAIN) -> int:
        """Return how many tokens a row has in a setting: the setting's, or all that are taken."""
        return self.signature.only or setting.length

    def inputs(self, setting: Setting = PLAIN, seed: int = 0) -> Inputs:
        """Return inputs of the setting's size; they are the same for the same seed."""
        length = self.length(setting)
        key = setting.batch, length, seed
        if key not in self.drawn:
            lengths = {self.signature.axis: length} if self.signature.axis else {}
            self.drawn[key] = self.signature.draw(
                setting.batch, lengths, seed + self.copies.recipe.seed, self.copies.dtype
            )
        return dict(self.drawn[key])

    def remembered(self, run: Run) -> torch.Tensor:
        """Return the answer without gradients; the same run is made only once."""
        inputs = tuple(sorted((name, id(value)) for name, value in run.inputs.items()))
        key = inputs, run.setting, run.chunks, run.masked, run.slot, run.beams, run.drafts
        if key not in self.answers:
            with torch.no_grad():
                # The run is kept with its answer, so that the ids of its tensors stay taken.
                self.answers[key] = run, self.answer(run)
        return self.answers[key][1]

    def attempt(self, inputs: Inputs, setting: Setting) -> torch.Tensor | None:
        """Return an answer, or None where the call raises an exception."""
        try:
            return self.remembered(Run(inputs, setting))
        except Exception:
            return None

    def answer(self, run: Run, recorder: Recorder | None = None) -> torch.Tensor:
        """Return the answer as (batch, positions, rest), with gradients where they are enabled.

        Every run begins with the buffers, attributes and closures of a copy that has not run.
        """
        self.copies.reset(run.setting)
        if run.chunks is not None:
            return self._fed_in_chunks(run, run.chunks, recorder)
        self._use(run.setting)
        output = self._recorded(self.complete(run), run.setting, recorder)
        return self.take(output, run.inputs, run.slot)

    def _use(self, setting: Setting) -> None:
        """Make the calls that come before the one that counts, and reset the model if asked."""
        conditions = setting.conditions
        for batch, length in conditions.earlier:
            size = replace(setting, batch=batch, length=length)
            self.copies.call(self.inputs(size, seed=5), setting)
        if conditions.reset:
            getattr(self.copies.of(setting), conditions.reset)()

    def take(self, output: Any, inputs: Inputs, slot: Slot | None = None) -> torch.Tensor:
        """Return the answer that an output of the model holds."""
        return (slot or self.signature.slot).take(output, self.signature.batch_of(inputs)).cpu()

    def call(
        self,
        inputs: Inputs,
        setting: Setting = PLAIN,
        recorder: Recorder | None = None,
        in_place: bool = False,
    ) -> Any:
        """Return the output of one call of a copy as it began, and record its modules' calls."""
        self.copies.reset(setting)
        return self._recorded(inputs, setting, recorder, in_place)

    def _recorded(
        self,
        inputs: Inputs,
        setting: Setting,
        recorder: Recorder | None = None,
        in_place: bool = False,
    ) -> Any:
        watch = recorder.watching(self.copies.of(setting)) if recorder else nullcontext()
        with watch:
            return self.copies.call(inputs, setting, in_place)

    def complete(self, run: Run) -> Inputs:
        """Return the inputs with what the setting adds: masks, optional arguments, embeddings."""
        inputs = {**run.inputs, **dict(run.setting.arguments)}
        if run.setting.mask:
            for mask in self.facts.masks:
                real = self.signature.all_real(inputs, mask.axis)
                inputs.setdefault(mask.name, mask.value(real))
        embeds = self.facts.arguments.embeds
        if run.setting.embeds and embeds:
            ids = inputs.pop(self.signature.main.name)
            table: Any = self.copies.of(run.setting).get_input_embeddings()  # type: ignore[operator]
            inputs[embeds] = table(ids.to(self.copies.device)).detach()
        return inputs

    def _fed_in_chunks(
        self, run: Run, chunks: tuple[int, ...], recorder: Recorder | None
    ) -> torch.Tensor:
        """Return the joined answers of the chunks, each with the cache of the one before."""
        model = self.copies.of(run.setting)
        cache = self.empty_cache(run.setting, self.signature.batch_of(run.inputs))
        answers, past = [], 0
        watch = recorder.watching(model) if recorder else nullcontext()
        with watch:
            for size in chunks:
                piece = self.chunk(run, past, size)
                output, cache = self.feed(piece, run.setting, cache, past)
                answers.append(self.take(output, piece))
                past += size
                if len(answers) == 1:
                    cache = self.edited(run, cache, past, recorder)
        return torch.cat(answers, 1)

    def edited(self, run: Run, cache: Any, past: int, recorder: Recorder | None) -> Any:
        """Return the cache after what a run does to it behind its first chunk."""
        batch = self.signature.batch_of(run.inputs)
        if run.beams:
            cache = reordered(cache, run.beams, self.copies.of(run.setting), batch)
        if not run.drafts:
            return cache
        cache, mark = self.drafted(run, cache, past, recorder)
        return cropped(cache, mark, run.drafts)

    def drafted(
        self, run: Run, cache: Any, past: int, recorder: Recorder | None
    ) -> tuple[Any, Bookmark]:
        """Return the cache after tokens that are to be dropped again, and how it was before."""
        batch = self.signature.batch_of(run.inputs)
        if hasattr(cache, RECORDING):
            getattr(cache, RECORDING)()
        mark = bookmark(cache, past, self.protocol.start is not None)
        marks = recorder and (len(recorder.begun), len(recorder.done))
        where = torch.ones(batch, self.signature.length_of(run.inputs), dtype=torch.bool)
        other = self.signature.with_other(run.inputs, self.inputs(run.setting, seed=1), where)
        for place in range(past, past + run.drafts):
            piece = self.chunk(replace(run, inputs=other), place, 1)
            _, cache = self.feed(piece, run.setting, cache, place)
        if recorder and marks:  # what was dropped is no part of the answer
            del recorder.begun[marks[0] :], recorder.done[marks[1] :]
        return cache, mark

    @property
    def protocol(self) -> CacheProtocol:
        """The way in which the model's cache is passed on; only models with a cache have one."""
        assert self.facts.cache is not None
        return self.facts.cache

    def empty_cache(self, setting: Setting, batch: int) -> Any:
        """Return the cache before the first token; None where the model makes its own."""
        if self.protocol.make is None:
            return None
        model = self.copies.of(setting)
        with self.copies.surroundings(model, setting):
            return self.protocol.make(model, batch)

    def chunk(self, run: Run, past: int, size: int) -> Inputs:
        """Return the inputs of one chunk, with a mask that also covers the tokens before it."""
        piece = self.signature.cut(run.inputs, past, past + size)
        for mask in self.facts.masks_over(self.signature.axis):
            if mask.counts:
                continue  # cutting has shortened the rows' lengths
            if mask.name in run.inputs:
                piece[mask.name] = mask.cut(run.inputs[mask.name], past, past + size)
            elif run.masked:
                whole = self.signature.cut(run.inputs, 0, past + size)
                real = mask.value(self.signature.all_real(whole, mask.axis))
                piece[mask.name] = mask.cut(real, past, past + size)
        positions = self.facts.arguments.positions
        if positions and positions.name in run.inputs:
            piece[positions.name] = run.inputs[positions.name][..., past : past + size]
        return {**piece, **dict(run.setting.arguments)}

    def feed(self, piece: Inputs, setting: Setting, cache: Any, past: int) -> tuple[Any, Any]:
        """Return the output for one chunk, and the cache after it."""
        protocol = self.protocol
        if protocol.step:
            model = self.copies.of(setting)
            with self.copies.surroundings(model, setting):
                return protocol.step(model, self.copies.on_device(piece), cache)
        inputs = {**piece, **dict(protocol.arguments)}
        if protocol.argument and cache is not None:
            inputs[protocol.argument] = cache
        if protocol.start:
            inputs[protocol.start] = past
        output = self.copies.call(inputs, setting)
        if protocol.source is not None:
            cache = follow(output, protocol.source)
        return output, cache
