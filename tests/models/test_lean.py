"""Lean twins: the same numbers from the same tensors, and themselves where they are watched."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import querykey as qk
from querykey.models import build, preset
from querykey.models.decoding.lean import _mkl_is_at_home, lean
from querykey.models.presets import llama
from querykey.nn import MLP, AttentionConfig, Block, BlockConfig, MLPConfig, MultiHeadAttention

PACKED = torch.ops.mkldnn._linear_pointwise
PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm, PACKED)


def spoken(model, name, ids):
    """What a model or its twin says of ids at once, and in pieces through a state."""
    pair = name in ("transformer", "t5")
    outs = [model(ids, ids) if pair else model(ids)]
    state = model.empty_state(ids if pair else len(ids))
    for piece in ids.split([3, 1, 1, 2], 1):
        out, state = model.extend(piece, state)
        outs.append(out)
    return torch.cat(outs, 1)


@pytest.mark.parametrize("at_home", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize(
    "name", ["gpt", "llama", "alibi", "elu", "quadratic-decay", "transformer", "t5"]
)
@torch.no_grad()
def test_a_twin_says_the_same(name, rows, at_home, monkeypatch):
    monkeypatch.setattr("querykey.models.decoding.lean._mkl_is_at_home", lambda: at_home)
    torch.manual_seed(0)
    model, ids = build(preset(name)).eval(), torch.randint(0, 128, (3, 7))
    for parameter in model.parameters():  # biases start as 0, and would not be missed
        parameter += 0.05 * torch.randn_like(parameter)
    twin = lean(model, rows)
    assert not isinstance(twin, nn.Module)
    got, plain = spoken(twin, name, ids), spoken(model, name, ids)
    exact = spoken(model.double(), name, ids)
    within = 2 * (plain - exact).abs().max() + torch.finfo(plain.dtype).eps * exact.abs().max()
    assert (got - exact).abs().max() <= within
    assert (spoken(lean(model, rows), name, ids) - exact).abs().max() < 1e-12


@pytest.mark.parametrize("at_home", [True, False])
@torch.no_grad()
def test_a_prepared_twin_asks_for_fewer_products(at_home, monkeypatch):
    monkeypatch.setattr("querykey.models.decoding.lean._mkl_is_at_home", lambda: at_home)
    block = Block(llama().block)
    for rows in (0, 1, 3):
        with Products() as products:
            lean(block, rows)(torch.randn(rows or 1, 1, 64))
        assert len(products.asked) == (4 if rows else 7)
        assert products.asked.count(PACKED) == (4 if rows == 3 and not at_home else 0)


class Products(TorchDispatchMode):
    """Notes who is asked for a matrix product with weights."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket in PRODUCTS:
            self.asked.append(function.overloadpacket)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("name", "at_home"), [("Intel Xeon", True), ("AMD EPYC", False)])
def test_mkl_is_at_home_on_intels_processors(name, at_home, monkeypatch):
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"cpu_name": name}, raising=False)
    monkeypatch.setattr("torch.backends.mkl.is_available", lambda: True)
    assert _mkl_is_at_home.__wrapped__() is at_home


@pytest.mark.parametrize(("key_dim", "value_dim"), [(5, 5), (3, 7)])
@pytest.mark.parametrize("source_width", [None, 8])
@torch.no_grad()
def test_products_are_joined_where_they_have_one_input(key_dim, value_dim, source_width):
    torch.manual_seed(0)
    config = AttentionConfig(4, 2, key_dim, value_dim)
    attention = MultiHeadAttention(8, config, source_width=source_width).double()
    twin, x = lean(attention, rows=2), torch.randn(2, 1, 8).double()
    source = None if source_width is None else torch.randn(2, 5, source_width).double()
    assert hasattr(twin, "qkv") is (source is None and key_dim == value_dim)
    assert (twin(x, source) - attention(x, source)).abs().max() < 1e-12


def test_an_idle_dropout_is_left_out():
    block = Block(replace(BlockConfig.preset("pre-norm", 8, 2), dropout=0.5))
    assert lean(block).dropout is block.dropout
    assert lean(block.eval()).dropout is None


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


def test_hooks_of_all_modules_are_heard():
    model, heard = build(preset("gpt")).eval(), []
    hook = nn.modules.module.register_module_forward_hook(lambda m, *_: heard.append(type(m)))
    try:
        qk.generate(model, torch.tensor([[1, 2]]), max_new_tokens=3)
    finally:
        hook.remove()
    assert heard.count(MLP) == 6


def test_a_new_forward_of_a_class_is_run(monkeypatch):
    torch.manual_seed(0)
    mlp, x = MLP(8, MLPConfig(12)), torch.randn(2, 8)
    before, old = lean(mlp)(x), MLP.forward
    monkeypatch.setattr(MLP, "forward", lambda self, x: -old(self, x))
    assert torch.equal(lean(mlp)(x), -before)


def test_what_is_not_ours_stays_itself():
    layer = nn.TransformerEncoderLayer(8, 2)
    assert lean(layer) is layer
    norm = Block(BlockConfig.preset("pre-norm", 8, 2))
    norm.attention_norm = nn.BatchNorm1d(8)
    assert lean(norm).attention_norm is norm.attention_norm
