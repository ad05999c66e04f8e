"""What generation says is what the forward pass would: token by token the largest score."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from querykey.laws.blaming.recorder import Call
from querykey.laws.catalogue import padding
from querykey.laws.law import Law
from querykey.laws.runner import Specimen
from querykey.laws.trial import Outcome, Run, Trial, cells
from querykey.laws.understanding.copies import Inputs, Setting
from querykey.targets import generation

PROMPT, NEW = 5, 6
COUNTS = re.compile(r"^(max_|num_|n_)?(new_)?(tokens?|steps?|len|length|seq_len)$|^n$|^count$")
SPECIAL = re.compile(r"^(\w+_)?(eos|eot|end|stop|pad)(ding)?(_token)?s?(_id|_idx|_index)?$")

# Where scores alone are to decide.
NEUTRAL = {
    "do_sample": False, "num_beams": 1, "beam_size": 1, "beams": 1, "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
}  # fmt: skip


class Greedy(TorchFunctionMode):
    """Inside, drawing a token takes the likeliest one: every source of chance is constant."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name == "multinomial":
            count = args[1] if len(args) > 1 else kwargs.get("num_samples", 1)
            return args[0].topk(count, -1).indices
        out = func(*args, **kwargs)
        if name in ("exponential_", "uniform_", "rand", "rand_like") and out.is_floating_point():
            return out.fill_(0.5)
        return out


def generates(specimen: Specimen) -> str:
    """To decoders of tokens with a cache, or with a `generate` of their own."""
    if not specimen.causal:
        return f"not causal: {specimen.why}"
    main = specimen.anatomy.main
    if main.kind != "tokens" or main.axes[0] != "batch" or not specimen.anatomy.sequential:
        return "it does not answer with tokens for tokens"
    plain = specimen.remembered(Run(specimen.inputs(Setting()), Setting()))
    if plain.dim() < 3 or plain.shape[-1] < main.high:
        return "its answers are no scores of tokens"
    return "" if _speaker(specimen) else "it has no cache and no generate of its own"


def _speaker(specimen: Specimen) -> str:
    """Who generates: the library, the model's own method, or we with the model's cache."""
    model = specimen.bench.model
    if generation.generates(model):
        return "library"
    if callable(getattr(model, "generate", None)) and not specimen.anatomy.others():
        return "own"
    return "cache" if specimen.cache else ""


def generate(specimen: Specimen, setting: Setting) -> Iterator[Outcome]:
    """Let it generate, then ask the forward pass about every token that it said.

    A model that says the same token over and over would say it for many wrong reasons too: it gets
    another prompt.
    """
    name, inputs = specimen.anatomy.main.name, specimen.inputs(setting)
    words = inputs[name]
    for at in range(0, words.shape[1] - PROMPT + 1, PROMPT):
        prompt = specimen.cut({**inputs, name: words.roll(-at, 1)}, 0, PROMPT)
        if setting.mask:
            real = specimen.all_real(prompt, specimen.anatomy.axis)
            real[1, :2] = False
            prompt |= padding.given(specimen, specimen.anatomy.axis, real)
        ids, who = _said(specimen, setting, prompt)
        yield _judged(specimen, setting, prompt, ids, who)
        if not bool((ids[:, -1] == ids[:, -2]).all()):
            return


def _judged(
    specimen: Specimen, setting: Setting, prompt: Inputs, ids: torch.Tensor, who: str
) -> Outcome:
    padded = " behind a left-padded prompt" if setting.mask else ""
    pair = _speaker(specimen) == "library" and specimen.anatomy.others()
    start = 1 if pair else PROMPT  # a pair's decoder begins with a token of its own
    told = ids.shape[1] - 1
    inputs = _grown(specimen, prompt, ids[:, :told])
    setting = replace(setting, mask=False)  # where one is given, it is among the inputs
    gaps = _regret(specimen, specimen.remembered(Run(inputs, setting)), ids, start)
    row, place = divmod(int(gaps.argmax()), gaps.shape[1])
    if gaps[row, place] > specimen.threshold and not _again(specimen, setting, prompt, ids):
        raise ValueError("its generate draws tokens by a chance that cannot be kept from acting")
    trial = None
    if specimen.cache and start < told:
        real = torch.ones(len(ids), told, dtype=torch.bool)
        for mask in specimen.mask_for(specimen.anatomy.axis)[:1]:
            if mask.name in inputs:  # what stands at padding is nobody's matter
                real = inputs[mask.name].bool() ^ mask.hides
        keep = cells([(int(r), int(i)) for r, i in real.nonzero()])
        chunks = (start, *[1] * (told - start))
        trial = Trial(Run(inputs, setting), Run(inputs, setting, chunks), (keep, keep))
    words = f"{who} takes a token that forward does not score highest{padded}"
    guilty = Call("", specimen.bench.twin(setting), [])  # unless the trial names a part
    where = {"sample": row, "position": start + place}
    return Outcome(float(gaps[row, place]), None, setting, where, trial, words, guilty)


def _said(specimen: Specimen, setting: Setting, prompt: Inputs) -> tuple[torch.Tensor, str]:
    """The prompt (a first token in an encoder-decoder) with what was generated; and by whom."""
    model: Any = specimen.bench.twin(setting)
    main = specimen.anatomy.main
    given = specimen.bench.placed(prompt)
    if _speaker(specimen) == "cache":
        return _with_cache(specimen, setting, prompt), "generating with the cache"
    with torch.no_grad(), specimen.bench.surroundings(model, setting), Greedy():
        if _speaker(specimen) == "library":
            if specimen.positions:
                given.pop(specimen.positions.name, None)  # its generate counts by itself
            return generation.greedy(model, given, NEW, main).cpu(), "its generate"
        return _own(model, given, main.name).cpu(), "its generate"


def _again(specimen: Specimen, setting: Setting, prompt: Inputs, ids: torch.Tensor) -> bool:
    """Whether the same tokens are said a second time."""
    return torch.equal(_said(specimen, setting, prompt)[0], ids)


def _with_cache(specimen: Specimen, setting: Setting, inputs: Inputs) -> torch.Tensor:
    """Feed the cache with the choice of each step."""
    protocol, prompt = specimen.cache, inputs
    cache = protocol.begin(specimen, setting, specimen.batch_of(inputs))
    ids, past = inputs[specimen.anatomy.main.name], 0
    with torch.no_grad():
        for _ in range(NEW):
            inputs = _grown(specimen, prompt, ids)
            piece = protocol.piece(specimen, Run(inputs, setting), past, ids.shape[1] - past)
            output, cache = protocol.one(specimen, piece, setting, cache, past)
            past = ids.shape[1]
            ids = torch.cat([ids, specimen.take(output, piece)[:, -1:].argmax(-1)], 1)
    return ids


def _grown(specimen: Specimen, prompt: Inputs, ids: torch.Tensor) -> Inputs:
    """The prompt's inputs with these ids, masks and positions grown to their length."""
    inputs = specimen.edit({**prompt, specimen.anatomy.main.name: ids}, lambda value: value)
    for mask in specimen.mask_for(specimen.anatomy.axis)[:1]:
        if mask.name in prompt:
            real = torch.ones(ids.shape, dtype=torch.bool)
            before = prompt[mask.name].bool() ^ mask.hides
            real[:, : before.shape[1]] = before[:, : ids.shape[1]]
            inputs |= padding.given(specimen, mask.axis, real)
    return inputs


def _own(model: Any, prompt: Inputs, main: str) -> torch.Tensor:
    """What a generate of the user's own returns, read as ids that begin with the prompt."""
    ids, given = prompt[main], {}
    for each in list(inspect.signature(model.generate).parameters.values())[1:]:
        if COUNTS.match(each.name):
            given[each.name] = NEW if each.name != "max_length" else PROMPT + NEW
        elif each.name in NEUTRAL:
            given[each.name] = NEUTRAL[each.name]
        elif each.name in prompt:
            given[each.name] = prompt[each.name]
    made = model.generate(ids, **given)
    made = made[0] if isinstance(made, tuple) else made
    if not isinstance(made, torch.Tensor) or made.dim() != 2 or len(made) != len(ids):
        raise ValueError("what its generate returns is not understood")
    if made.shape[1] > PROMPT and bool((made[:, :PROMPT] == ids).all()):
        return made
    if not 0 < made.shape[1] <= NEW:
        raise ValueError("what its generate returns is neither the prompt continued nor new tokens")
    return torch.cat([ids, made], 1)


def _regret(specimen: Specimen, scores: torch.Tensor, ids: torch.Tensor, start: int):
    """How far below the best score each generated token lies, relative to the scores' size."""
    low, high = (specimen.anatomy.main.low, specimen.anatomy.main.high)
    if not generation.generates(specimen.bench.model):
        low, high = 0, scores.shape[-1]
    said = ids[:, start:]
    ends = torch.tensor(sorted(_special(specimen.bench.model)), dtype=torch.long)
    ended = torch.isin(said, ends).cumsum(1) - torch.isin(said, ends).long() > 0
    scores = scores[:, start - 1 :].double()
    taken = scores.gather(-1, said[..., None]).squeeze(-1)
    gap = scores[..., low:high].amax(-1) - taken
    return torch.where(ended, 0.0, gap / scores.pow(2).mean().sqrt())


def _special(model: Any) -> set[int]:
    """Tokens after which a row may be over, by the names that people give them."""
    holders = [vars(model), getattr(getattr(model, "config", None), "__dict__", {})]
    holders.append({n: p.default for n, p in inspect.signature(model.generate).parameters.items()}
                   if hasattr(model, "generate") else {})  # fmt: skip
    found = [value for each in holders for name, value in each.items() if SPECIAL.match(name)]
    return {value for value in found if isinstance(value, int)}


def sweep(specimen: Specimen) -> Iterator[Setting]:
    """Prompts of one length; and of two, where a mask can say so."""
    yield Setting()
    masks = [] if specimen.anatomy.others() else specimen.mask_for(specimen.anatomy.axis)
    if _speaker(specimen) == "own":
        model: Any = specimen.bench.model
        masks = [m for m in masks if m.name in inspect.signature(model.generate).parameters]
    if masks:
        yield Setting(mask=True)


LAWS = (
    Law(
        "cache.generate",
        "greedy generation takes the tokens that one forward pass scores highest",
        "generate",
        "every token that is generated",
        generates,
        generate,
        sweep,
    ),
)
