"""Greedy generation by a `transformers` model itself, with nothing but its scores to go by."""

from __future__ import annotations

from typing import Any

import torch

from querykey.targets.inputs import Input, is_hugging_face


def generates(model: Any) -> bool:
    """Whether it is a `transformers` model that can generate."""
    return is_hugging_face(model) and bool(model.can_generate())


def greedy(model: Any, inputs: dict[str, Any], count: int, main: Input) -> torch.Tensor:
    """Ids that begin with the prompt, or with a decoder's first token, and `count` more.

    Only plain ids are said (special ones may stand for images), none ends a row, none is padding.
    """
    from transformers import GenerationConfig

    def plain(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        kept = torch.full_like(scores, -torch.inf)
        kept[:, main.low : main.high] = scores[:, main.low : main.high]
        return kept

    given = {name: value for name, value in inputs.items() if name != "decoder_input_ids"}
    # What a configuration forces, suppresses or penalises would be no matter of scores.
    model.generation_config = GenerationConfig(
        pad_token_id=-1, bos_token_id=main.low, decoder_start_token_id=main.low
    )
    return model.generate(
        **given, logits_processor=[plain], do_sample=False, num_beams=1, max_new_tokens=count
    )
