"""Greedy generation takes the tokens that one forward pass scores highest."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from querykey.laws.blaming.recorder import ModuleCall
from querykey.laws.catalogue import padding
from querykey.laws.law import Law
from querykey.laws.run import PLAIN, Inputs, Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Evidence, Outcome, Trial
from querykey.targets import generates as library_generates
from querykey.targets import greedy

PROMPT, NEW = 5, 6
COUNTS = re.compile(r"^(max_|num_|n_)?(new_)?(tokens?|steps?|len|length|seq_len)$|^n$|^count$")
SPECIAL = re.compile(r"^(\w+_)?(eos|eot|end|stop|pad)(ding)?(_token)?s?(_id|_idx|_index)?$")

# Values by which scores alone decide.
NEUTRAL = {
    "do_sample": False, "num_beams": 1, "beam_size": 1, "beams": 1, "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
}  # fmt: skip


class Greedy(TorchFunctionMode):
    """Makes every random draw constant, so that drawing a token takes the likeliest one."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name == "multinomial":
            count = args[1] if len(args) > 1 else kwargs.get("num_samples", 1)
            return args[0].topk(count, -1).indices
        out = func(*args, **kwargs)
        if name in ("exponential_", "uniform_", "rand", "rand_like") and out.is_floating_point():
            return out.fill_(0.5)
        return out


def generates(runner: Runner) -> str:
    """Return why the law does not apply: it is for decoders with a cache or a `generate`."""
    if not runner.facts.causal:
        return f"not causal: {runner.facts.intent.why}"
    main = runner.signature.main
    if main.kind != "tokens" or main.axes[0] != "batch" or not runner.signature.sequential:
        return "it does not answer with tokens for tokens"
    plain = runner.remembered(Run(runner.inputs(), PLAIN))
    if plain.dim() < 3 or plain.shape[-1] < main.high:
        return "its answers are no scores of tokens"
    return "" if _generator(runner) else "it has no cache and no generate of its own"


def _generator(runner: Runner) -> str:
    """Return what generates: the library, the model's own method, or we with its cache."""
    model = runner.copies.model
    if library_generates(model):
        return "library"
    if callable(getattr(model, "generate", None)) and not runner.signature.others():
        return "own"
    return "cache" if runner.facts.cache else ""


def generate(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Let the model generate, then ask the forward pass about every token that it took.

    A model that takes the same token over and over would do so for many wrong reasons, too: it
    gets another prompt.
    """
    name, inputs = runner.signature.main.name, runner.inputs(setting)
    tokens = inputs[name]
    for start in range(0, tokens.shape[1] - PROMPT + 1, PROMPT):
        prompt = runner.signature.cut({**inputs, name: tokens.roll(-start, 1)}, 0, PROMPT)
        if setting.mask:
            real = runner.signature.all_real(prompt, runner.signature.axis)
            real[1, :2] = False
            prompt |= padding.arguments(runner, runner.signature.axis, real)
        ids = _generated(runner, setting, prompt)
        yield _outcome(runner, setting, prompt, ids)
        if not bool((ids[:, -1] == ids[:, -2]).all()):
            return


def _outcome(runner: Runner, setting: Setting, prompt: Inputs, ids: torch.Tensor) -> Outcome:
    """Compare the generated tokens with the scores of one forward pass over all of them."""
    padded = " behind a left-padded prompt" if setting.mask else ""
    pair = _generator(runner) == "library" and runner.signature.others()
    start = 1 if pair else PROMPT  # a pair's decoder begins with a token of its own
    inputs = _grown(runner, prompt, ids[:, :-1])
    setting = replace(setting, mask=False)  # where a mask is passed, it is among the inputs
    gaps = _regret(runner, runner.remembered(Run(inputs, setting)), ids, start)
    row, place = divmod(int(gaps.argmax()), gaps.shape[1])
    gap = float(gaps[row, place])
    if gap > runner.facts.threshold and not _repeats(runner, setting, prompt, ids):
        raise ValueError("its generate draws tokens by a chance that cannot be kept from acting")
    who = "generating with the cache" if _generator(runner) == "cache" else "its generate()"
    note = (
        f"{who}{padded} takes a token at position {start + place} of row {row} that one forward "
        f"pass scores {gap:.2g} below the highest"
    )
    trial = _split(runner, setting, inputs, start, f"{who} was asked{padded}")
    whole_model = ModuleCall("", runner.copies.of(setting), [])  # unless the trial names a part
    evidence = Evidence({"sample": row, "position": start + place}, trial, whole_model)
    return Outcome(gap, note, setting, evidence=evidence)


def _split(runner: Runner, setting: Setting, inputs: Inputs, start: int, what: str) -> Trial | None:
    """Return the trial that feeds the same tokens one by one with the cache, where there is one."""
    length = runner.signature.length_of(inputs)
    if not runner.facts.cache or start >= length:
        return None
    real = torch.ones(runner.signature.batch_of(inputs), length, dtype=torch.bool)
    for mask in runner.facts.masks_over(runner.signature.axis)[:1]:
        if mask.name in inputs:  # answers at padding are not compared
            real = mask.real(inputs[mask.name], length)
    keep = padding.cells_where(real)
    chunks = (start, *[1] * (length - start))
    return Trial(Run(inputs, setting), Run(inputs, setting, chunks), (keep, keep), what=what)


def _generated(runner: Runner, setting: Setting, prompt: Inputs) -> torch.Tensor:
    """Return the prompt (a first token in an encoder-decoder) with the generated tokens."""
    model: Any = runner.copies.of(setting)
    main = runner.signature.main
    runner.copies.reset(setting)
    if _generator(runner) == "cache":
        return _with_cache(runner, setting, prompt)
    passed = runner.copies.on_device(prompt)
    with torch.no_grad(), runner.copies.surroundings(model, setting), Greedy():
        if _generator(runner) == "library":
            positions = runner.facts.arguments.positions
            if positions:
                passed.pop(positions.name, None)  # its generate counts by itself
            return greedy(model, passed, NEW, main).cpu()
        return _by_own_method(model, passed, main.name).cpu()


def _repeats(runner: Runner, setting: Setting, prompt: Inputs, ids: torch.Tensor) -> bool:
    """Return whether the same tokens are generated a second time."""
    return torch.equal(_generated(runner, setting, prompt), ids)


def _with_cache(runner: Runner, setting: Setting, inputs: Inputs) -> torch.Tensor:
    """Return the prompt with the tokens that feeding the cache step by step chooses."""
    prompt = inputs
    cache = runner.empty_cache(setting, runner.signature.batch_of(inputs))
    ids, past = inputs[runner.signature.main.name], 0
    with torch.no_grad():
        for _ in range(NEW):
            inputs = _grown(runner, prompt, ids)
            piece = runner.chunk(Run(inputs, setting), past, ids.shape[1] - past)
            output, cache = runner.feed(piece, setting, cache, past)
            past = ids.shape[1]
            ids = torch.cat([ids, runner.take(output, piece)[:, -1:].argmax(-1)], 1)
    return ids


def _grown(runner: Runner, prompt: Inputs, ids: torch.Tensor) -> Inputs:
    """Return the prompt's inputs with these ids, and masks and positions of their length."""
    inputs = runner.signature.edit({**prompt, runner.signature.main.name: ids}, lambda value: value)
    for mask in runner.facts.masks_over(runner.signature.axis)[:1]:
        if mask.name in prompt:
            real = torch.ones(ids.shape, dtype=torch.bool)
            before = mask.real(prompt[mask.name], runner.signature.length_of(prompt))
            real[:, : before.shape[1]] = before[:, : ids.shape[1]]
            inputs |= padding.arguments(runner, mask.axis, real)
    return inputs


def _by_own_method(model: Any, prompt: Inputs, main: str) -> torch.Tensor:
    """Return what the model's own generate returns, read as ids that begin with the prompt."""
    ids, arguments = prompt[main], {}
    for name in list(inspect.signature(model.generate).parameters)[1:]:
        if COUNTS.match(name):
            arguments[name] = NEW if name != "max_length" else PROMPT + NEW
        elif name in NEUTRAL:
            arguments[name] = NEUTRAL[name]
        elif name in prompt:
            arguments[name] = prompt[name]
    output = model.generate(ids, **arguments)
    output = output[0] if isinstance(output, tuple) else output
    if not isinstance(output, torch.Tensor) or output.dim() != 2 or len(output) != len(ids):
        raise ValueError("what its generate returns is not understood")
    if output.shape[1] > PROMPT and bool((output[:, :PROMPT] == ids).all()):
        return output
    if not 0 < output.shape[1] <= NEW:
        raise ValueError("what its generate returns is neither the prompt continued nor new tokens")
    return torch.cat([ids, output], 1)


def _regret(runner: Runner, scores: torch.Tensor, ids: torch.Tensor, start: int):
    """Return how far below the best score every token lies, relative to the scores' size."""
    low, high = (runner.signature.main.low, runner.signature.main.high)
    if not library_generates(runner.copies.model):
        low, high = 0, scores.shape[-1]
    tokens = ids[:, start:]
    ends = torch.isin(tokens, torch.tensor(sorted(_special(runner.copies.model)), dtype=torch.long))
    ended = ends.cumsum(1) - ends.long() > 0
    scores = scores[:, start - 1 :].double()
    taken = scores.gather(-1, tokens[..., None]).squeeze(-1)
    gap = scores[..., low:high].amax(-1) - taken
    return torch.where(ended, 0.0, gap / scores.pow(2).mean().sqrt())


def _special(model: Any) -> set[int]:
    """Return the tokens that may end a row, by the names that people give them."""
    holders = [vars(model), getattr(getattr(model, "config", None), "__dict__", {})]
    holders.append({n: p.default for n, p in inspect.signature(model.generate).parameters.items()}
                   if hasattr(model, "generate") else {})  # fmt: skip
    values = [value for held in holders for name, value in held.items() if SPECIAL.match(name)]
    return {value for value in values if isinstance(value, int)}


def sweep(runner: Runner) -> Iterator[Setting]:
    """Try prompts of one length; and of two lengths, where a mask can tell them apart."""
    yield PLAIN
    masks = [] if runner.signature.others() else runner.facts.masks_over(runner.signature.axis)
    if _generator(runner) == "own":
        model: Any = runner.copies.model
        masks = [m for m in masks if m.name in inspect.signature(model.generate).parameters]
    if masks:
        yield Setting(mask=True)


LAWS = (
    Law(
        "cache.generate",
        says="Greedy generation takes the tokens that one forward pass scores highest.",
        why="Otherwise what is evaluated is not what is generated (llama 899).",
        how="Tokens are generated; one forward pass over all of them scores every choice.",
        trials=generate,
        applies=generates,
        sweep=sweep,
    ),
)
