"""Our attention inside any `transformers` model that uses its attention interface.

register("quadratic", Kernel(Quadratic()))
model.set_attn_implementation("quadratic")
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from querykey.attention import FULL, Causal, Dense, Mask, Mechanism, Padding, Softmax
from querykey.backends.dispatch import attend
from querykey.errors import QuerykeyError


def register(name: str, mechanism: Mechanism, backend: str = "auto") -> None:
    """Make `name` an attention implementation of `transformers` that runs the mechanism.

    Softmax takes each model's own scale and softcap; other mechanisms are run as they are given.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    if "|" in name or "/" in name:
        raise QuerykeyError(
            f"a name with | or / means something else to transformers; got {name!r}"
        )

    def forward(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        softcap: float | None = None,
        is_causal: bool | None = None,
        position_bias: torch.Tensor | None = None,
        s_aux: torch.Tensor | None = None,
        **unused: Any,
    ) -> tuple[torch.Tensor, None]:
        if dropout:
            raise QuerykeyError(f"{name} has no attention dropout; set the model's to 0, or eval()")
        if s_aux is not None:
            raise QuerykeyError(f"{name} has no attention sinks, which {type(module).__name__} has")
        ours = mechanism
        if isinstance(ours, Softmax):
            ours = replace(ours, scale=scaling, softcap=softcap)
        causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
        mask, bias = _understood(attention_mask, causal, query, key)
        if position_bias is not None:
            bias = position_bias if bias is None else bias + position_bias
        out = attend(
            query, key, value, mechanism=ours, mask=mask, bias=bias,
            start=key.shape[-2] - query.shape[-2] if mask.uses_positions else None,
            backend=backend,
        )  # fmt: skip
        return out.transpose(1, 2).contiguous(), None

    AttentionInterface.register(name, forward)
    AttentionMaskInterface.register(name, _mask)


def _mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Any = None,
    attention_mask: torch.Tensor | None = None,
    device: Any = "cpu",
    **options: Any,
) -> torch.Tensor | None:
    """Say what may be seen in the least that says it, which `_understood` reads.

    None is causal, (batch, keys) is causal with padding, (batch, 1, 1, keys) is padding alone, and
    what is neither is written out in full by the library itself.
    """
    from transformers.masking_utils import (
        bidirectional_mask_function,
        causal_mask_function,
        sdpa_mask,
    )

    real = attention_mask
    if real is not None:
        fits = real.shape[-1] >= kv_offset + kv_length
        real = real[:, kv_offset : kv_offset + kv_length].bool() if fits else None
    readable = attention_mask is None or real is not None
    if readable and mask_function is bidirectional_mask_function:
        if real is None:
            real = torch.ones(batch_size, kv_length, dtype=torch.bool, device=device)
        return real[:, None, None, :]
    aligned = isinstance(q_offset, int) and q_offset - kv_offset == kv_length - q_length
    if readable and aligned and mask_function is causal_mask_function:
        return real
    return sdpa_mask(
        batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask,
        device=device, **(options | {"allow_is_causal_skip": False}),
    )  # fmt: skip


def _understood(
    mask: torch.Tensor | None, causal: bool, query: torch.Tensor, key: torch.Tensor
) -> tuple[Mask, torch.Tensor | None]:
    """Return our rule for a mask of transformers, and the bias that one of floats may hide."""
    if mask is None:
        return Causal() if causal else FULL, None
    if mask.ndim == 2:
        return Causal() & Padding(mask), None
    if mask.shape[-2] == 1 and mask.shape[1] == 1 and mask.dtype == torch.bool:
        return Padding(mask[:, 0, 0].expand(query.shape[0], -1)), None
    mask = mask[..., : key.shape[-2]]
    mask = mask.expand(*mask.shape[:2], query.shape[-2], key.shape[-2])
    if mask.dtype == torch.bool:
        return Dense(mask), None
    # Older models add floats to the scores: the smallest number for what is hidden, a bias beside.
    seen = mask > torch.finfo(mask.dtype).min / 2
    bias = mask.masked_fill(~seen, 0)
    return Dense(seen), bias if bool((bias != 0).any()) else None
