"""Greedy generation of a `transformers` model, beside a loop over its forward."""

import pytest
import torch
from torch import nn

from querykey.targets import build, generates, greedy

pytest.importorskip("transformers")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hf:gpt2", "hf:t5"])
def test_it_says_what_forward_scores_highest(name):
    target = build(name)
    model, (main, *_) = target.model, target.inputs
    ids = torch.tensor([[main.low, main.low + 7, main.low + 3], [main.high - 1, 9, 17]])
    ids = ids.clamp(main.low, main.high - 1)
    said = ids if name == "hf:gpt2" else torch.full((2, 1), main.low)
    for _ in range(4):
        given = {"input_ids": said} if name == "hf:gpt2" else {"decoder_input_ids": said}
        scores = model(**{"input_ids": ids, **given}).logits[:, -1, main.low : main.high]
        said = torch.cat([said, scores.argmax(-1, keepdim=True) + main.low], 1)
    assert torch.equal(greedy(model, {"input_ids": ids}, 4, main), said)


def test_only_models_of_transformers_generate_so():
    assert not generates(nn.Linear(3, 3))
