"""The modules against torch's own layers and against the documents' equations in plain NumPy."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import querykey as qk
from querykey.attention.positions import Rotary
from querykey.nn import MLP, AttentionConfig, Block, BlockConfig, MLPConfig, MultiHeadAttention
from querykey.nn.config import NormConfig
from querykey.nn.tensors import cast_once, one_product

torch.manual_seed(0)
BATCH, TOKENS, WIDTH, HEADS = 2, 7, 12, 3


def tokens(count=TOKENS, width=WIDTH, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, count, width, generator=generator, dtype=torch.float64)


def array(parameter):
    return parameter.detach().numpy()


def softmax(scores, axis):
    exponentials = np.exp(scores - scores.max(axis, keepdims=True))
    return exponentials / exponentials.sum(axis, keepdims=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("cross", [False, True])
def test_attention_equals_torchs_own(causal, cross):
    if causal and cross:
        pytest.skip("a causal mask over another sequence has no meaning here")
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64)
    nn.init.normal_(theirs.in_proj_bias)
    mask = qk.Causal() if causal else qk.FULL
    ours = MultiHeadAttention(WIDTH, AttentionConfig(HEADS), mask=mask).double()
    with torch.no_grad():
        for part, weight, bias in zip(
            (ours.q, ours.k, ours.v),
            theirs.in_proj_weight.chunk(3),
            theirs.in_proj_bias.chunk(3),
            strict=True,
        ):
            part.weight.copy_(weight)
            part.bias.copy_(bias)
        ours.o.load_state_dict(theirs.out_proj.state_dict())
    x, source = tokens(), tokens(5, seed=1)
    real = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool() if cross else None
    future = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1) if causal else None
    seen = source if cross else x
    hidden = None if real is None else ~real
    wanted = theirs(x, seen, seen, attn_mask=future, key_padding_mask=hidden)[0]
    got = ours(x, source, real=real) if cross else ours(x)
    assert (got - wanted).abs().max() < 1e-12


def test_heads_of_document_002():
    """K heads, U < J, I = J / K, no scale, no output projection: the six equations."""
    u = 5
    config = AttentionConfig(
        HEADS, key_dim=u, mechanism=qk.Softmax(scale=1.0), output=False, biases=()
    )
    layer = MultiHeadAttention(WIDTH, config).double()
    h = array(tokens())[0]
    heads = [array(part.weight).reshape(HEADS, -1, WIDTH) for part in (layer.q, layer.k, layer.v)]
    outs = []
    for k in range(HEADS):
        query, key, value = (h @ w[k].T for w in heads)
        outs.append(softmax(query @ key.T, 1) @ value)
    got = layer(torch.tensor(h)[None])[0]
    assert np.abs(array(got) - np.concatenate(outs, 1)).max() < 1e-12


def test_grouped_heads_read_their_key_head():
    config = AttentionConfig(6, kv_heads=2, key_dim=4, value_dim=5)
    layer = MultiHeadAttention(WIDTH, config).double()
    x = tokens()
    q = layer.q(x).reshape(BATCH, TOKENS, 6, 4)
    k = layer.k(x).reshape(BATCH, TOKENS, 2, 4)
    v = layer.v(x).reshape(BATCH, TOKENS, 2, 5)
    outs = []
    for head in range(6):
        scores = torch.einsum("btd,bsd->bts", q[:, :, head], k[:, :, head // 3]) / 2
        outs.append(torch.softmax(scores, -1) @ v[:, :, head // 3])
    assert (layer(x) - layer.o(torch.cat(outs, -1))).abs().max() < 1e-12


@pytest.mark.parametrize(
    "mechanism",
    [qk.Softmax(), qk.Argmax(), qk.Kernel(qk.Quadratic()), qk.Kernel(qk.EluPlusOne())],
    ids=repr,
)
@pytest.mark.parametrize("window", [None, 3])
def test_decoding_in_pieces_equals_the_whole(mechanism, window):
    mask = qk.Causal() if window is None else qk.Causal() & qk.Window(window)
    config = AttentionConfig(4, kv_heads=2, mechanism=mechanism)
    layer = MultiHeadAttention(WIDTH, config, mask=mask, rotary=Rotary(width=2)).double()
    x, state = tokens(), layer.empty_state(BATCH)
    outs = []
    for piece in x.split([3, 1, 2, 1], 1):
        out, state = layer.extend(piece, state)
        outs.append(out)
    assert (torch.cat(outs, 1) - layer(x)).abs().max() < 1e-10
    assert state.lengths.tolist() == [TOKENS, TOKENS]


def test_padding_changes_nothing_and_positions_count_real_tokens():
    layer = MultiHeadAttention(WIDTH, AttentionConfig(HEADS), mask=qk.Causal(), rotary=Rotary())
    layer = layer.double()
    x = tokens()
    padded = torch.cat([torch.full_like(x[:, :2], torch.nan), x], 1)
    real = torch.arange(TOKENS + 2).expand(BATCH, -1) >= 2
    assert (layer(padded, real=real)[:, 2:] - layer(x)).abs().max() < 1e-12


def test_a_backend_is_asked_for_by_name():
    layer = MultiHeadAttention(
        WIDTH, AttentionConfig(HEADS, mechanism=qk.Argmax()), backend="sdpa"
    ).double()
    with pytest.raises(ValueError, match="backend 'sdpa' cannot serve this call"):
        layer(tokens())


@pytest.mark.parametrize(("name", "place"), [("post-norm", False), ("pre-norm", True)])
def test_blocks_equal_torchs_own(name, place):
    theirs = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 20, dropout=0, batch_first=True, norm_first=place, dtype=torch.float64,
        activation="gelu" if place else "relu",
    ).eval()  # fmt: skip
    ours = Block(BlockConfig.preset(name, WIDTH, HEADS, 20)).double()
    with torch.no_grad():
        weights = theirs.self_attn.in_proj_weight.chunk(3)
        for part, weight in zip(
            (ours.attention.q, ours.attention.k, ours.attention.v), weights, strict=True
        ):
            part.weight.copy_(weight)
            part.bias.zero_()
        for mine, other in (
            (ours.attention.o, theirs.self_attn.out_proj),
            (ours.attention_norm, theirs.norm1),
            (ours.mlp_norm, theirs.norm2),
            (ours.mlp.up, theirs.linear1),
            (ours.mlp.down, theirs.linear2),
        ):
            mine.load_state_dict(other.state_dict())
    x = tokens()
    assert (ours(x) - theirs(x)).abs().max() < 1e-12


def mlp(block, x):
    up, down = block.mlp.up, block.mlp.down
    hidden = np.maximum(x @ array(up.weight).T + array(up.bias), 0)
    return hidden @ array(down.weight).T + array(down.bias)


@pytest.mark.parametrize("name", ["bare", "residual"])
def test_the_documents_blocks(name):
    """Document 000: MLP(Attention(X)), exp unscaled. Document 004, (7): f(A(x) + x), scaled."""
    block = Block(BlockConfig.preset(name, WIDTH, hidden=20)).double()
    x = array(tokens())[0]
    q, k, v = (
        x @ array(part.weight).T
        for part in (block.attention.q, block.attention.k, block.attention.v)
    )
    scale = 1 if name == "bare" else 1 / np.sqrt(WIDTH)
    attended = softmax(scale * q @ k.T, 1) @ v
    wanted = mlp(block, attended if name == "bare" else attended + x)
    assert np.abs(array(block(torch.tensor(x)[None]))[0] - wanted).max() < 1e-12


def test_a_gated_mlp():
    layer = MLP(WIDTH, MLPConfig(20, "silu", gated=True, bias=False)).double()
    x = tokens()
    gate = layer.gate(x)
    assert torch.allclose(layer(x), layer.down(gate * torch.sigmoid(gate) * layer.up(x)))


def test_batch_norm_is_torchs_over_all_tokens():
    config = BlockConfig(
        WIDTH, AttentionConfig(HEADS), MLPConfig(20), NormConfig("batch", epsilon=1e-3)
    )
    block, x = Block(config).double(), tokens()
    seen = []
    block.attention_norm.register_forward_hook(lambda _, inputs, out: seen.append((inputs[0], out)))
    block(x)
    rows = seen[0][0].reshape(-1, WIDTH)
    wanted = (rows - rows.mean(0)) / (rows.var(0, unbiased=False) + 1e-3).sqrt()
    assert (seen[0][1].reshape(-1, WIDTH) - wanted).abs().max() < 1e-12


def test_a_printed_block_reads_like_its_diagram():
    config = BlockConfig.preset("pre-norm", 8, 2)
    assert str(Block(config, mask=qk.Causal(), source_width=8)) == PRINTED


PRINTED = """\
Block(
  norm before, residual around attention and mlp
  (attention_norm): LayerNorm((8,), eps=1e-05, elementwise_affine=True, bias=True)
  (attention): MultiHeadAttention(
    2 heads, keys of 4, values of 4, Softmax(scale=None, softcap=None), mask=Causal()
    (q): Linear(in_features=8, out_features=8, bias=True)
    (k): Linear(in_features=8, out_features=8, bias=True)
    (v): Linear(in_features=8, out_features=8, bias=True)
    (o): Linear(in_features=8, out_features=8, bias=True)
  )
  (cross_norm): LayerNorm((8,), eps=1e-05, elementwise_affine=True, bias=True)
  (cross): MultiHeadAttention(
    2 heads, keys of 4, values of 4, Softmax(scale=None, softcap=None)
    (q): Linear(in_features=8, out_features=8, bias=True)
    (k): Linear(in_features=8, out_features=8, bias=True)
    (v): Linear(in_features=8, out_features=8, bias=True)
    (o): Linear(in_features=8, out_features=8, bias=True)
  )
  (mlp_norm): LayerNorm((8,), eps=1e-05, elementwise_affine=True, bias=True)
  (mlp): MLP(
    gelu
    (up): Linear(in_features=8, out_features=32, bias=True)
    (down): Linear(in_features=32, out_features=8, bias=True)
  )
)"""


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: AttentionConfig(4, kv_heads=3), "4 heads cannot share 3 key heads evenly"),
        (lambda: MLPConfig(8, "gleu"), "activation: there is no 'gleu'"),
        (lambda: NormConfig("layers"), "kind: there is no 'layers'"),
        (lambda: BlockConfig.preset("prenorm", 8), "name: there is no 'prenorm'"),
        (lambda: BlockConfig.preset("bare", 7, 2), "7 features do not split into 2 heads"),
        (
            lambda: BlockConfig(8, AttentionConfig(2, value_dim=3, output=False), MLPConfig(8)),
            "without an output projection the 2 heads of 3 values make 6 features",
        ),
    ],
)
def test_configs_that_make_no_sense(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_rotary_positions_under_autocast():
    torch.manual_seed(0)
    rotary = Rotary()
    layer = MultiHeadAttention(16, AttentionConfig(heads=2), mask=qk.Causal(), rotary=rotary)
    x = torch.randn(1, 7, 16)
    # As a stack of blocks does: the turns of all layers are made from what is not yet rounded.
    turns = rotary.turns(torch.arange(7), x.new_empty(1, layer.key_dim))
    with torch.autocast("cpu", torch.bfloat16):
        low = layer(x, turns=turns)
    assert low.dtype == torch.bfloat16
    assert (low.float() - layer(x, turns=turns)).abs().max() < 0.02


def dropped_by_hand(layer, x):
    """Causal attention with torch's dropout of its weights, head by head."""
    q, k, v = (
        part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (layer.q, layer.k, layer.v)
    )
    scores = q @ k.mT / q.shape[-1] ** 0.5
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    shares = nn.functional.dropout(scores.masked_fill(future, -torch.inf).softmax(-1), 0.4)
    return layer.o((shares @ v).transpose(1, 2).flatten(2))


def test_attention_drops_weights_while_training_only():
    config = AttentionConfig(HEADS, dropout=0.4)
    layer = MultiHeadAttention(WIDTH, config, mask=qk.Causal()).double()
    plain = MultiHeadAttention(WIDTH, AttentionConfig(HEADS), mask=qk.Causal()).double()
    plain.load_state_dict(layer.state_dict())
    x = tokens()
    torch.manual_seed(1)
    wanted = dropped_by_hand(layer, x)
    torch.manual_seed(1)
    got = layer(x)
    assert (got - wanted).abs().max() < 1e-12
    torch.manual_seed(1)
    stepped, state = layer.extend(x, layer.empty_state(BATCH))
    assert (stepped - wanted).abs().max() < 1e-12
    assert state.lengths.tolist() == [TOKENS] * BATCH
    assert (got - plain(x)).abs().max() > 1e-2
    assert torch.equal(layer.eval()(x), plain(x))


def test_dropout_is_of_softmax_and_a_share():
    with pytest.raises(ValueError, match=r"dropout is of softmax's weights; Argmax\(\) has none"):
        AttentionConfig(2, mechanism=qk.Argmax(), dropout=0.1)
    with pytest.raises(ValueError, match=r"dropout is a share, from 0 to below 1; got 1\.5"):
        AttentionConfig(2, dropout=1.5)


def decaying(mask=qk.Causal(), **options):  # noqa: B008 - a frozen value
    config = AttentionConfig(4, 2, mechanism=qk.Kernel(qk.Quadratic(), 0.3), decay=True)
    torch.manual_seed(0)
    attention = MultiHeadAttention(WIDTH, config, mask=mask, **options).double()
    with torch.no_grad():
        attention.gate.bias.copy_(torch.tensor([0.5, -0.3]))
    return attention


@pytest.mark.parametrize("padded", [False, True])
def test_gates_of_decay_are_the_equation(padded):
    """The similarity of i and j times the gates of j + 1 to i, in loops; padding's gates are 1."""
    attention, x = decaying(), tokens()
    real = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    if padded:
        real[0, 2], real[1, 5:] = False, False
    q, k, v = (
        (array(x) @ array(part.weight).T + array(part.bias)).reshape(BATCH, TOKENS, -1, 3)
        for part in (attention.q, attention.k, attention.v)
    )
    gates = 1 / (
        1 + np.exp(-(array(x) @ array(attention.gate.weight).T + array(attention.gate.bias)))
    )
    wanted = np.zeros((BATCH, TOKENS, 4, 3))
    for b, i, h in np.ndindex(BATCH, TOKENS, 4):
        total = 0.0
        for j in range(i + 1):
            if not real[b, j]:
                continue
            between = [gates[b, p, h // 2] for p in range(j + 1, i + 1) if real[b, p]]
            similarity = (0.3 * q[b, i, h] @ k[b, j, h // 2] + 1) ** 2 * np.prod(between)
            wanted[b, i, h] += similarity * v[b, j, h // 2]
            total += similarity
        wanted[b, i, h] /= total or 1
    wanted = wanted.reshape(BATCH, TOKENS, -1) @ array(attention.o.weight).T + array(
        attention.o.bias
    )
    out = attention(x, real=real if padded else None).detach().numpy()
    assert np.abs(out - wanted)[real].max() < 1e-12


def test_gradients_reach_the_gates():
    attention, x = decaying(), tokens()
    attention(x).square().sum().backward()
    assert attention.gate.weight.grad.abs().min() > 1e-6
    assert attention.gate.bias.grad.abs().min() > 1e-6

    def run(weight, bias):
        gated = {"gate.weight": weight, "gate.bias": bias}
        return torch.func.functional_call(attention, gated, (x,))

    gate = (attention.gate.weight, attention.gate.bias)
    assert torch.autograd.gradcheck(run, [part.detach().requires_grad_() for part in gate])


@pytest.mark.parametrize("counts", [(3, 1, 3), (1,) * 7, (0, 7)])
def test_a_decaying_state_in_pieces_equals_the_whole(counts):
    attention, x = decaying(), tokens()
    state, outs = attention.empty_state(BATCH), []
    for piece in x.split(counts, 1):
        out, state = attention.extend(piece, state)
        outs.append(out)
    assert (torch.cat(outs, 1) - attention(x)).abs().max() < 1e-12
    assert state.nbytes == attention.empty_state(BATCH).nbytes


def test_fresh_gates_remember_32_to_512_tokens():
    config = AttentionConfig(12, 3, mechanism=qk.Kernel(qk.Quadratic()), decay=True)
    attention = MultiHeadAttention(WIDTH, config, mask=qk.Causal())
    spans = 1 / (1 - attention.gate.bias.sigmoid())
    assert torch.allclose(spans, torch.tensor([32.0, 128.0, 512.0]), rtol=1e-3)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: AttentionConfig(4, decay=True), "a decay multiplies the similarities of Kernel"),
        (lambda: decaying(mask=qk.FULL), "it wants Causal()"),
        (lambda: decaying(mask=qk.Causal() & qk.Window(3)), "it wants Causal()"),
    ],
)
def test_a_decay_without_meaning_is_refused(make, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        make()


def test_attention_to_a_source_does_not_decay():
    config = replace(
        BlockConfig.preset("pre-norm", WIDTH, 3),
        attention=AttentionConfig(3, mechanism=qk.Kernel(qk.Quadratic()), decay=True),
    )
    block = Block(config, mask=qk.Causal(), source_width=5)
    assert block.attention.gate is not None
    assert block.cross.gate is None


def test_a_number_for_a_config_counts_heads_or_hidden_features():
    torch.manual_seed(0)
    layer = MultiHeadAttention(16, 4)
    torch.manual_seed(0)
    twin = MultiHeadAttention(16, AttentionConfig(4))
    x = torch.randn(2, 5, 16)
    assert torch.equal(layer(x), twin(x))
    assert MLP(16, 7).up.out_features == 7


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MultiHeadAttention(15, 4), "15 features do not split into 4 heads of one size"),
        (
            lambda: MultiHeadAttention(16, 4.0),
            "`config` of MultiHeadAttention is AttentionConfig | int; got 4.0",
        ),
        (lambda: MultiHeadAttention(16.0, 4), "`width` of MultiHeadAttention is int; got 16.0"),
        (lambda: MLP(16, 4.5), "`config` of MLP is MLPConfig | int; got 4.5"),
        (lambda: MultiHeadAttention(16, 4)(torch.ones(2, 5, 15)), "attention takes floats (batch"),
        (lambda: MultiHeadAttention(16, 4)(torch.ones(2, 5, 16).long()), "got torch.int64 (2, 5,"),
    ],
)
def test_layers_that_cannot_be_made_or_called(make, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        make()


def test_tokens_that_cannot_meet_the_weights_are_refused():
    layer = MultiHeadAttention(8, 2)
    x = torch.ones(1, 5, 8)
    for tokens, words in (
        (x.double(), "x is float64 but the weights are float32"),
        (x.to("meta"), "x is on meta but the weights are on cpu"),
        (x.to_sparse(), "x is a dense tensor, not a sparse_coo one"),
    ):
        with pytest.raises(TypeError, match=f"^{words}$"):
            layer(tokens)
    with torch.autocast("cpu"):
        assert layer(x.bfloat16()).shape == x.shape
    layer.q = torch.nn.Sequential(
        layer.q
    )  # what takes the place of a Linear may take what it likes
    with pytest.raises(RuntimeError, match="must have the same dtype"):
        layer(x.double())


class TokenCasts(TorchDispatchMode):
    """Counts the casts of tensors (batch, tokens, width)."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._to_copy.default and args[0].ndim == 3
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("layer", "source"),
    [
        (MultiHeadAttention(WIDTH, HEADS), None),
        (MultiHeadAttention(WIDTH, HEADS, source_width=WIDTH), tokens(5).float()),
        (MLP(WIDTH, MLPConfig(24, "silu", gated=True)), None),
    ],
    ids=["self", "cross", "gated"],
)
def test_autocast_casts_tokens_once_there_and_once_back(layer, source):
    sources = [tokens().float(), *([] if source is None else [source])]
    leaves = [source.requires_grad_() for source in sources]
    with torch.autocast("cpu", torch.bfloat16), TokenCasts() as casts:
        out = layer(*(leaf * 1 for leaf in leaves))  # autocast keeps the casts of leaves
        out.sum().backward()
    assert casts.count == 2 * len(leaves)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(out, layer(*(leaf.detach().bfloat16() for leaf in leaves)))


class ProductCount(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return function(*args, **(kwargs or {}))


def products_of(x, layers):
    with torch.autocast("cpu", torch.bfloat16), ProductCount() as products:
        parts = one_product(cast_once(x), layers)
    return parts, products.count


@pytest.mark.parametrize("bias", [True, False])
def test_layers_of_one_input_are_one_product_while_training_under_autocast(bias):
    layers = [nn.Linear(WIDTH, size, bias) for size in (3, 7, 2)]
    leaves = [torch.zeros(BATCH, TOKENS, WIDTH), *(p for m in layers for p in m.parameters())]
    for seed, leaf in enumerate(leaves):  # whole numbers: no order of sums rounds another way
        generator = torch.Generator().manual_seed(seed)
        leaf.data = torch.randint(-3, 4, leaf.shape, generator=generator).float()
        leaf.requires_grad_()

    def outcome():
        parts, count = products_of(leaves[0], layers)
        loss = parts[0].float().sum() - 2 * parts[1].float().sum() + 3 * parts[2].float().sum()
        return count, [*parts, *torch.autograd.grad(loss, leaves)]

    count, joined = outcome()
    assert count == 1
    calls = []
    handle = layers[1].register_forward_hook(lambda *call: calls.append(call))
    count, alone = outcome()  # what somebody watches is called
    handle.remove()
    assert (count, len(calls)) == (3, 1)
    for one, other in zip(joined, alone, strict=True):
        assert torch.equal(one, other)
    with torch.no_grad():  # nor are weights copied for what is computed once
        assert products_of(leaves[0], layers)[1] == 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_layers_run_on_a_device_that_has_no_autocast(dtype):
    layer = MultiHeadAttention(8, 2).to("meta", dtype)
    assert layer(torch.empty(2, 5, 8, device="meta", dtype=dtype)).shape == (2, 5, 8)
