"""Is attention spread at the start? Where one key takes all, no gradient passes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.overrides import TorchFunctionMode

from querykey.laws.catalogue import sweeps
from querykey.laws.catalogue.gradients import has_weights
from querykey.laws.law import Law
from querykey.laws.runner import Specimen
from querykey.laws.trial import Outcome, Run
from querykey.laws.understanding.copies import Setting

FLAT = 0.45  # an entropy, relative to that of equal weights, below which attention is saturated


class _Spread(TorchFunctionMode):
    """Measures how spread the weights are that softmax gives out over at least four keys."""

    def __init__(self) -> None:
        super().__init__()
        self.entropies: list[float] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        weights = out if name == "softmax" else None
        if name == "scaled_dot_product_attention":
            weights = _weights(*args, **(kwargs or {}))
        if weights is not None and weights.dim() >= 3 and weights.shape[-1] > 4:
            weights = weights.detach().double()
            visible = (weights > 0).sum(-1)
            entropy = -(weights * weights.clamp(min=1e-300).log()).sum(-1)
            wide = visible >= 4
            if wide.any():
                self.entropies.append(float((entropy[wide] / visible[wide].log()).mean()))
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
    """The weights that torch's fused attention does not give out."""
    key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3) if enable_gqa else key
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is not None:
        hides = attn_mask.dtype is torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if hides else scores + attn_mask
    if is_causal:
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(ahead, -torch.inf)
    return scores.softmax(-1)


def saturation(specimen: Specimen, setting: Setting) -> Iterator[Outcome]:
    """The spread of attention at the start; sharp weights let no gradient through."""
    spread = _Spread()
    inputs = specimen.complete(Run(specimen.inputs(setting), setting))
    with torch.no_grad(), spread:
        specimen.bench.raw(inputs, setting)
    if not spread.entropies:
        return
    lowest = min(spread.entropies)
    note = (
        f"attention is sharp at the start: its entropy is {lowest:.2f} of that of equal weights; "
        "is the scale 1/sqrt(width) missing?"
    )
    sharp = lowest < FLAT
    yield Outcome(1.0 if sharp else 0.0, None, setting, {}, None, note, advice=True)


LAWS = (
    Law(
        "saturation",
        "attention is spread at the start, so that gradients pass",
        "none",
        "the entropy of attention",
        has_weights,
        saturation,
        sweeps.plain,
    ),
)
