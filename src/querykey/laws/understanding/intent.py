"""Is it meant to be causal? A decoder that leaks must not pass for an encoder, nor the reverse."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from querykey.laws.blaming.recorder import Call, Recorder
from querykey.laws.runner import Specimen
from querykey.laws.trial import Run
from querykey.laws.understanding.copies import Setting
from querykey.laws.understanding.outputs import Slot, tensors
from querykey.laws.understanding.source_code import code_says

SWITCHES = re.compile(r"^_?(is_)?(causal|autoregressive|decoder)$")
LEAVES = (
    nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.GELU, nn.ReLU, nn.SiLU,
    nn.Identity, nn.Tanh, nn.Sigmoid,
)  # fmt: skip


class NothingSeenError(ValueError):
    """Answers that are not finite: who depends on whom cannot be seen through that."""


@dataclass(frozen=True)
class Intent:
    """Meant to be causal or not, why we think so, and what speaks against it."""

    causal: bool
    why: str
    doubt: str = ""


def find_intent(specimen: Specimen) -> Intent:
    """What its owner says, what its class says, what it does, what its parts and code say."""
    said = specimen.bench.subject.causal
    if said is not None:
        return Intent(said, "as told")
    if not specimen.anatomy.axis or specimen.anatomy.main.kind not in ("tokens", "features"):
        return Intent(False, "it takes no sequence")
    told = _library_says(specimen.bench.model)
    if told is not None:
        return told
    if not specimen.anatomy.sequential:
        return Intent(False, "it gives no answer per position")
    try:
        back, ahead = influence(specimen, Setting())
    except NothingSeenError as error:
        return Intent(False, str(error))
    if not ahead.any():
        if not back.any():
            return Intent(False, "no position looks at another")
        return Intent(True, "no position looks ahead")
    return _despite_a_leak(specimen, back, ahead)


def also_causal(specimen: Specimen) -> Iterator[Slot]:
    """Outputs beside the main one that look back, and ahead far less: those meant to be causal."""
    for slot in specimen.anatomy.more:
        anatomy = replace(specimen.anatomy, slot=slot)
        try:
            back, ahead = influence(replace(specimen, anatomy=anatomy, known={}), Setting())
        except Exception:  # what cannot be tried is not judged
            continue
        if back.shape[0] == back.shape[1] and _far_fewer(ahead, back):
            yield slot


def _far_fewer(ahead: torch.Tensor, back: torch.Tensor) -> bool:
    """Whether something is seen, and far fewer pairs ahead than back."""
    return bool(back.any()) and int((ahead > 0).sum()) <= 0.6 * int((back > 0).sum())


def influence(specimen: Specimen, setting: Setting) -> tuple[torch.Tensor, torch.Tensor]:
    """How strongly each answer depends on each earlier, and on each later, token: (i, j) tables."""
    inputs = specimen.inputs(replace(setting, batch=1))
    length = specimen.length_of(inputs)
    many = specimen.take_rows(inputs, [0] * (length + 1))
    other = specimen.take_rows(
        specimen.inputs(replace(setting, batch=1), seed=1), [0] * (length + 1)
    )
    where = torch.zeros(length + 1, length, dtype=torch.bool)
    where[1:] = torch.eye(length, dtype=torch.bool)
    changed = specimen.with_other(many, other, where)
    with torch.no_grad():
        try:
            answer = specimen.answer(Run(changed, setting))
        except Exception:  # some models have room for few rows
            rows = [specimen.take_rows(changed, [row]) for row in range(length + 1)]
            answer = torch.cat([specimen.answer(Run(row, setting)) for row in rows])
    if not answer.isfinite().all():
        raise NothingSeenError("its answers are not finite, and do not show who looks where")
    gap = (answer[1:] - answer[:1]).flatten(2).abs().amax(-1) / answer[0].pow(2).mean().sqrt()
    gap = torch.where(gap > specimen.threshold, gap, 0.0).mT  # (answer i, token j)
    return gap.tril(-1), gap.triu(1)


def _library_says(model: Any) -> Intent | None:
    """A `transformers` class is named after its purpose."""
    config = getattr(model, "config", None)
    if not any(base.__module__.startswith("transformers.") for base in type(model).__mro__):
        return None
    name = type(model).__name__
    if getattr(config, "is_encoder_decoder", False):
        return Intent(True, "an encoder-decoder by its configuration")
    if re.search(r"ForCausalLM|(?<!With)LMHeadModel$", name) or getattr(
        config, "is_decoder", False
    ):
        return Intent(True, f"{name} is a causal language model by its name or configuration")
    if re.search(r"ForMaskedLM", name):
        return Intent(False, f"{name} is a masked language model")
    return None


def _despite_a_leak(specimen: Specimen, back: torch.Tensor, ahead: torch.Tensor) -> Intent:
    """It looks ahead. Is that a breach, or what it is for?"""
    switch = _switch(specimen.bench.model)
    if switch is not None:
        return Intent(switch[1], f"its attribute `{switch[0]}` is {switch[1]}")
    length = len(ahead)
    prefix = _prefix(ahead)
    if prefix:
        return Intent(
            False,
            f"it looks ahead within the first {prefix} positions only, as a prefix model does",
            "if it is meant to be causal throughout, say causal=True",
        )
    seen_back, seen_ahead = int((back > 0).sum()), int((ahead > 0).sum())
    if not seen_back and code_says(specimen.bench.model, always=False):
        return Intent(True, "it looks ahead only, as if its causal mask were turned round")
    if _far_fewer(ahead, back):
        pairs = length * (length - 1) // 2
        return Intent(
            True, f"it sees {seen_back} of {pairs} earlier but only {seen_ahead} later pairs"
        )
    if float(ahead.mean()) < 0.25 * float(back.mean()):
        return Intent(True, "later tokens matter far less than earlier ones")
    causal, open_ = _votes(specimen)
    if open_ and causal >= open_:
        return Intent(True, f"{causal} of its {causal + open_} token-mixing modules are causal")
    for setting in _variants(specimen):
        try:
            back, ahead = influence(specimen, setting)
        except Exception:
            continue
        # Where nobody looks at anybody, as behind a mask turned round, nothing is told.
        if back.any() and not ahead.any():
            return Intent(True, f"it does not look ahead with {setting}")
    code = code_says(specimen.bench.model)
    if code:
        return Intent(True, code)
    # Two recurrences of opposite directions look like this, and so does a leak around the parts.
    doubt = "each of its parts is causal; if it is meant to be, say causal=True"
    return Intent(False, "it looks ahead everywhere", doubt if causal and not open_ else "")


def _prefix(ahead: torch.Tensor) -> int:
    """The length of the one block at the start in which all look ahead, or 0."""
    size = int(ahead.any(0).nonzero().max()) + 1
    block = torch.zeros_like(ahead, dtype=torch.bool)
    block[:size, :size] = True
    whole = bool(((ahead > 0) == block.triu(1)).all())
    return size if whole and 3 <= size < len(ahead) else 0


def _variants(specimen: Specimen) -> Iterator[Setting]:
    if specimen.masks:
        yield Setting(mask=True)
    for flag in specimen.flags:
        yield Setting(given=((flag, True),))
        yield Setting(given=((flag, False),))
    yield Setting(length=6)
    yield Setting(train=True)


def _switch(model: nn.Module) -> tuple[str, bool] | None:
    """An attribute of the user's own that says causal or not; True anywhere wins."""
    found = []
    for module in model.modules():
        for holder in (module, getattr(module, "config", None)):
            for name, value in getattr(holder, "__dict__", {}).items():
                if SWITCHES.match(name) and isinstance(value, bool):
                    found.append((name, value))
    return max(found, key=lambda each: each[1], default=None)


def _votes(specimen: Specimen) -> tuple[int, int]:
    """How many innermost token-mixing modules are causal, and how many are not, each alone."""
    setting = Setting()
    recorder = Recorder(keep_arguments=True)
    with torch.no_grad():
        specimen.answer(Run(specimen.inputs(setting), setting), recorder)
    verdicts: dict[str, str] = {}
    for call in recorder.done:
        if isinstance(call.module, LEAVES) or call.path in verdicts or not call.path:
            continue
        if any(path.startswith(f"{call.path}.") for path in verdicts):
            continue  # a part of it mixes already
        verdict = _alone(specimen, call, setting)
        if verdict:
            verdicts[call.path] = verdict
    votes = list(verdicts.values())
    return votes.count("causal"), votes.count("open")


def _alone(specimen: Specimen, call: Call, setting: Setting) -> str:
    """Call one module again with a single token changed, and see who notices."""
    args, kwargs = call.arguments
    batch, length = setting.batch, setting.length
    place = None
    for key, value in (*enumerate(args), *kwargs.items()):
        if _is_sequence(value, batch, length):
            place = key
            break
    if place is None:
        return ""
    value = args[place] if isinstance(place, int) else kwargs[place]
    changed = value.clone()
    axes = _axes(value, batch, length)
    view = changed.movedim(axes, (0, 1))
    middle = length // 2
    noise = torch.randn(view[:, middle].shape, generator=torch.Generator().manual_seed(3))
    view[:, middle] += noise.to(view) * view.std()
    twin = specimen.bench.twin(setting)
    try:
        with torch.no_grad(), specimen.bench.surroundings(twin, setting):
            both = []
            for given in (value, changed):
                new_args = tuple(
                    given if (a is value or i == place) else a for i, a in enumerate(args)
                )
                new_kwargs = {k: given if v is value else v for k, v in kwargs.items()}
                output = call.module(*new_args, **new_kwargs)
                first = next(t for _, t in tensors(output) if _is_sequence(t, batch, length))
                both.append(first.movedim(_axes(first, batch, length), (0, 1)))
    except Exception:
        return ""
    gap = (both[0] - both[1]).flatten(2).abs().amax((0, 2)) / both[0].pow(2).mean().sqrt()
    noticed = gap > specimen.threshold
    if noticed[:middle].any():
        return "open"
    return "causal" if noticed[middle + 1 :].any() else ""


def _is_sequence(value: Any, batch: int, length: int) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.dim() >= 3
        and {batch, length} <= set(value.shape[:2])
    )


def _axes(value: torch.Tensor, batch: int, length: int) -> tuple[int, int]:
    return (0, 1) if value.shape[0] == batch and value.shape[1] == length else (1, 0)
