"""Greedy generation with a `transformers` model's own generate()."""

from __future__ import annotations

from typing import Any

import torch

from querykey.targets.inputs import Input
from querykey.targets.kinds import is_hugging_face
from querykey.words import checked


@checked
def generates(model: Any) -> bool:
    """Return whether it is a `transformers` model that can generate."""
    return is_hugging_face(model) and bool(model.can_generate())


def greedy(model: Any, inputs: dict[str, Any], count: int, main: Input) -> torch.Tensor:
    """Return ids: the prompt, or a decoder's first token, and then `count` more.

    Only plain ids are generated (special ones may stand for images), no id ends a row, and none is
    padding, so that the answer depends on the scores alone.
    """
    from transformers import GenerationConfig

    def plain(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        kept = torch.full_like(scores, -torch.inf)
        kept[:, main.low : main.high] = scores[:, main.low : main.high]
        return kept

    prompt = {name: value for name, value in inputs.items() if name != "decoder_input_ids"}
    # The model's own configuration could force, suppress or penalise ids.
    model.generation_config = GenerationConfig(
        pad_token_id=-1, bos_token_id=main.low, decoder_start_token_id=main.low
    )
    return model.generate(
        **prompt, logits_processor=[plain], do_sample=False, num_beams=1, max_new_tokens=count
    )
