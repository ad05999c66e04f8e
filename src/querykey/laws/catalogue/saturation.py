"""Attention is spread over several keys at the start, so that gradients pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from querykey.laws.blaming.guilty_module import describe
from querykey.laws.blaming.recorder import Recorder
from querykey.laws.catalogue.gradients import has_weights
from querykey.laws.law import Law
from querykey.laws.private import without_vmap
from querykey.laws.run import Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Evidence, Outcome

FLAT = 0.45  # an entropy, relative to that of equal weights, below which attention is saturated


class Entropies(TorchFunctionMode):
    """Measures how spread the weights of every softmax over at least four keys are."""

    def __init__(self, recorder: Any) -> None:
        super().__init__()
        self.recorder = recorder  # whose `unfinished` is the module at work
        self.entropies: list[tuple[float, Any]] = []  # and the module at work

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        weights = out if name == "softmax" else None
        if name == "scaled_dot_product_attention":
            weights = _weights(*args, **(kwargs or {}))
        if weights is not None and without_vmap(weights).dim() >= 3 and weights.shape[-1] > 4:
            weights = without_vmap(weights).detach().double()
            visible = (weights > 0).sum(-1)
            entropy = -(weights * weights.clamp(min=1e-300).log()).sum(-1)
            wide = visible >= 4
            if wide.any():
                spread = float((entropy[wide] / visible[wide].log()).mean())
                self.entropies.append((spread, self.recorder.unfinished))
        return out


def _weights(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Return the weights that torch's fused attention computes and does not return."""
    key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3) if enable_gqa else key
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is not None:
        hides = attn_mask.dtype is torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if hides else scores + attn_mask
    if is_causal:
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(ahead, -torch.inf)
    return scores.softmax(-1)


def saturation(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Measure the entropy of attention in one forward pass."""
    recorder = Recorder()
    spread = Entropies(recorder)
    inputs = runner.complete(Run(runner.inputs(setting), setting))
    with torch.no_grad(), spread:
        runner.call(inputs, setting, recorder)
    if not spread.entropies:
        return
    lowest, call = min(spread.entropies, key=lambda pair: pair[0])
    note = (
        f"attention is sharp at the start: its entropy is {lowest:.2f} of that of equal weights; "
        "is the scale 1/sqrt(width) missing?"
    )
    evidence = Evidence(module=describe(call) if call else None)
    yield Outcome(1.0 if lowest < FLAT else 0.0, note, setting, evidence=evidence, advice=True)


LAWS = (
    Law(
        "saturation",
        says="Attention is spread over several keys at the start (advice, not a breach).",
        why="Otherwise hardly any gradient passes: the scale is often missing (mlc-llm 3426).",
        how="The entropy of every softmax is compared with that of equal weights.",
        trials=saturation,
        applies=has_weights,
    ),
)
