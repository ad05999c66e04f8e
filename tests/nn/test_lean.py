"""Lean twins: the same numbers from the same tensors, and themselves where they are watched."""

import pytest
import torch
from torch import nn

import querykey as qk
from querykey.models import build, preset
from querykey.nn import Block, BlockConfig
from querykey.nn.lean import lean


@pytest.mark.parametrize("name", ["gpt", "llama", "alibi", "elu", "transformer", "t5"])
@torch.no_grad()
def test_a_twin_says_the_same(name):
    torch.manual_seed(0)
    model = build(preset(name)).eval()
    twin = lean(model)
    assert not isinstance(twin, nn.Module)
    ids = torch.randint(0, 128, (2, 7))
    if name in ("transformer", "t5"):
        assert torch.equal(twin(ids, ids), model(ids, ids))
        ours, theirs = model.empty_state(ids), twin.empty_state(ids)
    else:
        assert torch.equal(twin(ids), model(ids))
        ours, theirs = model.empty_state(2), twin.empty_state(2)
    for piece in ids.split([3, 1, 1, 2], 1):
        wanted, ours = model.extend(piece, ours)
        got, theirs = twin.extend(piece, theirs)
        assert torch.equal(got, wanted)


@torch.no_grad()
def test_it_shares_the_tensors():
    block = Block(BlockConfig.preset("pre-norm", 8, 2))
    twin, x = lean(block), torch.randn(1, 3, 8)
    before = twin(x)
    block.mlp.down.bias += 1
    assert torch.allclose(twin(x), before + 1)


def test_hooks_are_heard():
    model, heard = build(preset("gpt")).eval(), []
    model.stack.blocks[1].mlp.up.register_forward_hook(lambda *_: heard.append("up"))
    qk.generate(model, torch.tensor([[1, 2]]), max_new_tokens=3)
    assert heard == ["up"] * 3


def test_what_is_not_ours_stays_itself():
    layer = nn.TransformerEncoderLayer(8, 2)
    assert lean(layer) is layer
    norm = Block(BlockConfig.preset("pre-norm", 8, 2))
    norm.attention_norm = nn.BatchNorm1d(8)
    assert lean(norm).attention_norm is norm.attention_norm
