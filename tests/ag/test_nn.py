"""Layers, losses and optimizers against torch's."""

import numpy as np
import pytest
import torch

import querykey.ag as ag
from querykey.ag import nn, optim
from querykey.errors import QuerykeyError

RNG = np.random.default_rng(0)


def close(a, b, rtol=1e-10):
    np.testing.assert_allclose(np.asarray(a), b.detach().numpy(), rtol=rtol, atol=1e-12)


def both(shape):
    x = RNG.standard_normal(shape)
    return ag.Tensor(x), torch.tensor(x, requires_grad=True)


def as_torch(tensor):
    return torch.tensor(tensor.data, requires_grad=True)


def test_linear_and_mlp():
    x, t = both((2, 3, 5))
    linear = nn.Linear(5, 7, rng=RNG)
    linear.b.data = RNG.standard_normal(7)
    W, b = as_torch(linear.W), as_torch(linear.b)
    out, want = linear(x), t @ W + b
    close(out, want)
    ag.sum(out * out).backward()
    (want * want).sum().backward()
    close(linear.W.grad, W.grad)
    close(linear.b.grad, b.grad)
    assert nn.Linear(5, 7, bias=False).b is None
    assert len(nn.Linear(5, 7, bias=False).parameters()) == 1
    mlp = nn.MLP(5, 11, rng=RNG)
    Wh, bh, Wo, bo = (as_torch(p) for p in mlp.parameters())
    close(mlp(x), torch.relu(t @ Wh + bh) @ Wo + bo)


def test_single_head_attention_is_the_courses():
    x, t = both((2, 7, 5))
    att = nn.SingleHeadAttention(5, rng=RNG)
    Wq, Wk, Wv = (as_torch(p) for p in (att.Wq, att.Wk, att.Wv))
    weights = torch.softmax((t @ Wk) @ (t @ Wq).mT, dim=1)
    want = (t.mT @ weights).mT @ Wv
    out = att(x)
    close(out, want)
    ag.sum(out * out).backward()
    (want * want).sum().backward()
    close(x.grad, t.grad)
    close(att.Wq.grad, Wq.grad, rtol=1e-9)


@pytest.mark.parametrize("causal", [False, True])
def test_multi_head_attention(causal):
    x, t = both((2, 7, 6))
    att = nn.MultiHeadAttention(6, 3, causal=causal, rng=RNG)
    Wq, Wk, Wv, Wo = (as_torch(p) for p in (att.Wq, att.Wk, att.Wv, att.Wo))
    q, k, v = ((t @ W).reshape(2, 7, 3, 2).transpose(1, 2) for W in (Wq, Wk, Wv))
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    want = mixed.transpose(1, 2).reshape(2, 7, 6) @ Wo
    out = att(x)
    close(out, want)
    ag.sum(out * out).backward()
    (want * want).sum().backward()
    close(x.grad, t.grad, rtol=1e-9)
    close(att.Wk.grad, Wk.grad, rtol=1e-8)
    with pytest.raises(ValueError, match="4 heads cannot share 6 features evenly"):
        nn.MultiHeadAttention(6, 4)


def test_layer_norm():
    x, t = both((2, 7, 5))
    norm = nn.LayerNorm(5)
    norm.gain.data, norm.shift.data = RNG.standard_normal(5), RNG.standard_normal(5)
    want = torch.nn.functional.layer_norm(t, (5,), as_torch(norm.gain), as_torch(norm.shift))
    out = norm(x)
    close(out, want)
    ag.sum(out * out * out).backward()
    (want**3).sum().backward()
    close(x.grad, t.grad, rtol=1e-9)


def test_batch_norm_in_training_and_evaluation():
    norm, theirs = nn.BatchNorm(5), torch.nn.BatchNorm1d(5).double()
    for _ in range(3):
        x, t = both((4, 7, 5))
        out, want = norm(x), theirs(t.transpose(1, 2)).transpose(1, 2)
        close(out, want)
        ag.sum(out * out * out).backward()
        (want**3).sum().backward()
        close(x.grad, t.grad, rtol=1e-8)
    close(norm.running_mean, theirs.running_mean)
    close(norm.running_var, theirs.running_var)
    norm.train(False)
    theirs.eval()
    x, t = both((4, 7, 5))
    close(norm(x), theirs(t.transpose(1, 2)).transpose(1, 2))


def test_embedding_adds_up_repeated_rows():
    table = nn.Embedding(6, 3, rng=RNG)
    ids = np.array([[0, 5, 5], [1, 5, 0]])
    t = as_torch(table.table)
    out, want = table(ids), torch.nn.functional.embedding(torch.tensor(ids), t)
    close(out, want)
    ag.sum(out * out).backward()
    (want * want).sum().backward()
    close(table.table.grad, t.grad)


def test_dropout_keeps_the_mean_and_stops_in_evaluation():
    drop = nn.Dropout(0.25, rng=np.random.default_rng(0))
    x = ag.Tensor(np.ones((100, 100), "float32"))
    out = drop(x)
    assert out.dtype == np.float32
    assert set(np.unique(out.data)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs(out.data.mean() - 1) < 0.02
    ag.sum(out).backward()
    assert np.array_equal(x.grad, out.data)
    drop.train(False)
    assert drop(x) is x
    with pytest.raises(ValueError, match="dropout is a share, from 0 to below 1; got 1"):
        nn.Dropout(1)


def test_a_transformer_block_learns_and_its_mode_reaches_every_part():
    rng = np.random.default_rng(0)
    block = nn.TransformerBlock(8, 16, n_heads=2, causal=True, dropout=0.1, rng=rng)
    assert block.eval() is block
    assert all(not m.training for m in block.modules())
    block.train()
    head, x = nn.Linear(8, 3, rng=rng), rng.standard_normal((4, 5, 8))
    y, loss, adam = (
        rng.integers(0, 3, (4, 5)),
        nn.CrossEntropyLoss(),
        optim.Adam([block, head], 0.01),
    )
    values = []
    for _ in range(60):
        adam.zero_grad()
        value = loss(head(block(x)), y)
        value.backward()
        adam.step()
        values.append(value.item())
    assert values[-1] < 0.5 * values[0]


def test_losses():
    z, t = both((4, 3))
    y = RNG.integers(0, 2, (4, 3))
    z.data *= 30
    t = torch.tensor(z.data, requires_grad=True)
    out = nn.BinaryCrossEntropyLoss()(z, y)
    want = torch.nn.functional.binary_cross_entropy_with_logits(t, torch.tensor(y, dtype=t.dtype))
    out.backward()
    want.backward()
    close(out, want)
    np.testing.assert_allclose(z.grad, t.grad.numpy(), rtol=1e-11, atol=0)
    z, t = both((4, 2, 5))
    labels = RNG.integers(0, 5, (4, 2))
    out = nn.CrossEntropyLoss()(z, labels)
    want = torch.nn.functional.cross_entropy(t.reshape(-1, 5), torch.tensor(labels).reshape(-1))
    out.backward()
    want.backward()
    close(out, want)
    close(z.grad, t.grad)
    with pytest.raises(ValueError, match="one integer per row of logits"):
        nn.CrossEntropyLoss()(z, labels[:, :1])
    z, t = both((4, 2))
    out, want = nn.MSELoss()(z, np.ones((4, 2))), ((t - 1) ** 2).mean()
    close(out, want)
    ag.gradcheck(lambda a: nn.BinaryCrossEntropyLoss()(a, y), RNG.standard_normal((4, 3)))


def test_the_losses_stay_finite_far_out():
    z = ag.Tensor(np.array([-1e4, 1e4, -1e4, 1e4]))
    loss = nn.BinaryCrossEntropyLoss()(z, np.array([0, 1, 1, 0]))
    loss.backward()
    assert loss.item() == 5000
    np.testing.assert_allclose(z.grad, [0, 0, -0.25, 0.25])


OPTIMIZERS = [
    (lambda p: optim.SGD(p, 0.1), lambda p: torch.optim.SGD(p, 0.1)),
    (
        lambda p: optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01),
        lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01),
    ),
    (lambda p: optim.Adam(p, 0.05), lambda p: torch.optim.Adam(p, 0.05)),
    (
        lambda p: optim.Adam(p, 0.05, betas=(0.8, 0.9), weight_decay=0.1),
        lambda p: torch.optim.Adam(p, 0.05, betas=(0.8, 0.9), weight_decay=0.1),
    ),
]


@pytest.mark.slow  # torch.optim takes seconds to import
@pytest.mark.parametrize(("ours", "theirs"), OPTIMIZERS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_optimizers(ours, theirs, dtype):
    start = RNG.standard_normal((3, 4)).astype(dtype)
    w, t = ag.Tensor(start), torch.tensor(start, requires_grad=True)
    ours, theirs = ours([w]), theirs([t])
    for _ in range(20):
        ours.zero_grad()
        theirs.zero_grad()
        ag.sum(ag.tanh(w) * w).backward()
        (torch.tanh(t) * t).sum().backward()
        ours.step()
        theirs.step()
    assert w.dtype == np.dtype(dtype)
    rounding = 20 * np.finfo(dtype).eps  # weights of about 1, rounded once in each of the 20 steps
    np.testing.assert_allclose(w.data, t.detach().numpy(), rtol=0, atol=rounding)


def small_model(seed):
    rng = np.random.default_rng(seed)
    return nn.TransformerBlock(4, 6, n_heads=2, rng=rng)


def test_state_goes_out_and_comes_back():
    a, b = small_model(0), small_model(1)
    state = a.state_dict()
    assert {"att.Wq", "mlp.bh", "norm_att.gain"} <= state.keys()
    assert all(type(v) is np.ndarray for v in state.values())
    x = RNG.standard_normal((2, 3, 4))
    assert not np.allclose(a(x).data, b(x).data)
    b.load_state_dict(state)
    assert np.array_equal(a(x).data, b(x).data)
    state["att.Wq"][:] = 0
    assert a.att.Wq.data.any()
    with pytest.raises(ValueError, match=r"att.Wq has shape \(4, 4\), in the state \(4, 3\)"):
        b.load_state_dict({**a.state_dict(), "att.Wq": np.zeros((4, 3))})
    renamed = a.state_dict()
    renamed["wq"] = renamed.pop("att.Wq")
    with pytest.raises(QuerykeyError, match=r"lacks \['att.Wq'\] and has \['wq'\] too many"):
        b.load_state_dict(renamed)
    norm = nn.BatchNorm(3)
    norm(ag.Tensor(RNG.standard_normal((5, 3))))
    other = nn.BatchNorm(3)
    other.load_state_dict(norm.state_dict())
    assert np.array_equal(other.running_mean, norm.running_mean)


@pytest.mark.parametrize("training", [True, False])
def test_layers_compute_in_floats_of_another_size(training):
    class Net(nn.Module):
        def __init__(self):
            self.table, self.block = nn.Embedding(7, 4, rng=RNG), small_model(0)
            self.layers = [nn.Linear(4, 4, rng=RNG), nn.BatchNorm(4), nn.SingleHeadAttention(4)]

        def __call__(self, ids):
            x = self.block(self.table(ids))
            for layer in self.layers:
                x = layer(x)
            return x

    wide = Net().train(training)
    narrow = Net().train(training)
    narrow.load_state_dict(wide.state_dict())
    assert narrow.astype(np.float32) is narrow
    ids, target = RNG.integers(0, 7, (3, 5)), RNG.integers(0, 4, (3, 5))
    for _ in range(2):
        values = [nn.CrossEntropyLoss()(net(ids), target) for net in (wide, narrow)]
        assert values[1].dtype == np.float32
        for net, value in zip((wide, narrow), values, strict=True):
            value.backward()
            optim.SGD(net, 0.1, momentum=0.9).step()
    for key, value in narrow.state_dict().items():
        assert value.dtype == np.float32, key
        np.testing.assert_allclose(value, wide.state_dict()[key], atol=1e-4)
    for p, q in zip(narrow.parameters(), wide.parameters(), strict=True):
        assert p.grad.dtype == np.float32
        np.testing.assert_allclose(p.grad, q.grad, atol=1e-4)


def test_astype_forgets_gradients_and_wants_floats():
    linear = nn.Linear(3, 2, rng=RNG)
    loss = ag.sum(linear(RNG.standard_normal((4, 3))))
    loss.backward(retain_graph=True)
    linear.astype(np.float32)
    assert linear.W.grad is None
    with pytest.raises(RuntimeError, match="was changed in place"):
        loss.backward()
    with pytest.raises(TypeError, match="parameters are floats, not int64"):
        linear.astype(int)


@pytest.mark.parametrize("kind", [optim.Adam, lambda p: optim.SGD(p, 0.1, momentum=0.9)])
def test_training_resumes_from_state_as_if_never_stopped(kind):
    x, loss = RNG.standard_normal((2, 3, 4)), nn.MSELoss()

    def train(model, optimizer, steps):
        for _ in range(steps):
            optimizer.zero_grad()
            loss(model(x), x).backward()
            optimizer.step()

    a = small_model(0)
    with_a = kind(a)
    train(a, with_a, 3)
    b = small_model(1)
    with_b = kind(b)
    b.load_state_dict(a.state_dict())
    with_b.load_state_dict(with_a.state_dict())
    train(a, with_a, 3)
    train(b, with_b, 3)
    for key, value in a.state_dict().items():
        assert np.array_equal(value, b.state_dict()[key]), key


def test_parameters_are_found_in_any_object_once():
    class Plain:
        def __init__(self):
            self.w = ag.Tensor([1.0])
            self.parts = [ag.Tensor([2.0]), {"deep": (self.w, ag.Tensor([3]))}]

    assert [p.item() for p in nn.parameters(Plain())] == [1.0, 2.0]
    assert [name for name, _ in nn.named_parameters(Plain())] == ["w", "parts.0", "parts.1.deep.0"]
    with pytest.raises(ValueError, match="there is nothing to train"):
        optim.SGD([])


class DocumentAttention:
    """A plain class, as the course writes its own."""

    def __init__(self):
        self.Wq = ag.Tensor(np.ones((2, 2)), label="Wq")


class Net(nn.Module):
    def __init__(self):
        self.att, self.drop = DocumentAttention(), {"x": nn.Dropout(0.5)}
        self.lins, self.parent = [[nn.Linear(2, 2)]], self

    def __call__(self, x):
        self.last = self.lins[0][0](x)
        return self.last


def test_all_see_the_same_parts():
    net = Net()
    net(ag.Tensor(np.ones((1, 2))))
    names = ["att.Wq", "lins.0.0.W", "lins.0.0.b"]
    assert [name for name, _ in nn.named_parameters(net)] == names  # and not what was computed
    assert list(net.state_dict()) == names
    assert not net.eval().drop["x"].training
    Net().load_state_dict(net.state_dict())


def test_a_state_that_does_not_fit_changes_nothing():
    linear = nn.Linear(2, 2)
    before = linear.W.data.copy()
    with pytest.raises(ValueError, match=r"^b has shape"):
        linear.load_state_dict({"W": np.zeros((2, 2)), "b": np.zeros(3)})
    np.testing.assert_array_equal(linear.W.data, before)


def test_an_optimizer_takes_any_iterator():
    linear = nn.Linear(2, 2)
    assert len(optim.SGD((p for p in linear.parameters()), lr=0.1).params) == 2


def test_batch_norm_refuses_one_value_per_feature():
    norm = nn.BatchNorm(2)
    with pytest.raises(ValueError, match=r"more than one value per feature; got \(1, 2\)"):
        norm(ag.Tensor(np.ones((1, 2))))
    assert np.isfinite(norm.running_var).all()


@pytest.mark.parametrize("label", [-1, 3])
def test_cross_entropy_refuses_a_class_that_is_not_there(label):
    with pytest.raises(ValueError, match="takes labels from 0 to 2"):
        nn.CrossEntropyLoss()(ag.Tensor(np.ones((2, 3))), np.array([0, label]))


def test_attention_says_what_it_takes():
    with pytest.raises(ValueError, match=r"takes \(batch, tokens, features\), not \(3, 4\)"):
        nn.MultiHeadAttention(4, 2)(ag.Tensor(np.ones((3, 4))))


def test_targets_of_a_loss_get_their_gradient():
    values = RNG.standard_normal((4, 3)), RNG.random((4, 3))
    theirs = torch.nn.functional.binary_cross_entropy_with_logits, torch.nn.functional.mse_loss
    for ours, theirs_of in zip((nn.BinaryCrossEntropyLoss(), nn.MSELoss()), theirs, strict=True):
        (z, y), (t, u) = (
            [ag.Tensor(v) for v in values],
            [torch.tensor(v, requires_grad=True) for v in values],
        )
        ours(z, y).backward()
        theirs_of(t, u).backward()
        close(z.grad, t.grad)
        close(y.grad, u.grad)


def test_losses_take_lists_and_integers():
    bce = torch.nn.functional.binary_cross_entropy_with_logits
    want = bce(torch.tensor([2.0, -1.0]), torch.tensor([1.0, 0.0]))
    close(nn.BinaryCrossEntropyLoss()([2, -1], [1, 0]), want.double(), rtol=1e-6)
    assert nn.MSELoss()([1, 2], [1, 4]).item() == 2
    assert nn.CrossEntropyLoss()([[3.0, 3.0]], [1]).item() == pytest.approx(np.log(2))


@pytest.mark.parametrize("ids", [[0, -1], [4], [True, False, True, False], [1.0]])
def test_an_embedding_refuses_what_is_no_row(ids):
    with pytest.raises(ValueError, match="Embedding takes integers from 0 to 3; got"):
        nn.Embedding(4, 2)(ids)


def test_an_embedding_of_nothing_is_empty():
    assert nn.Embedding(4, 2)([]).shape == (0, 2)


def test_integers_are_dropped_and_normalised_as_floats():
    x = np.array([[10, 20, 30, 40]])
    drop = nn.Dropout(0.25, rng=np.random.default_rng(0))
    assert set(np.unique(drop(x))) <= {0.0, *(x[0] * (1 / 0.75))}
    norm = nn.BatchNorm(4).eval()
    norm.running_mean += 0.5
    close(norm(x), torch.tensor((x - 0.5) / np.sqrt(1 + 1e-5)))


@pytest.mark.parametrize("make", [lambda r: nn.Linear(2, 2, rng=r), lambda r: nn.Dropout(0.5, r)])
def test_a_seed_is_no_generator(make):
    with pytest.raises(TypeError, match=r"a generator, np.random.default_rng\(7\), .* not 7"):
        make(7)


def after_a_step(kind, shapes=((2,), (3,))):
    params = [ag.Tensor(np.ones(shape)) for shape in shapes]
    for p in params:
        p.grad = np.ones_like(p.data)
    optimizer = kind(params)
    optimizer.step()
    return optimizer


def with_momentum(params):
    return optim.SGD(params, momentum=0.9)


def test_an_optimizer_refuses_the_state_of_another():
    sgd, adam = after_a_step(with_momentum).state_dict(), after_a_step(optim.Adam).state_dict()
    with pytest.raises(QuerykeyError, match=r"lacks \['mean.0', .* and has \['velocity.0'"):
        after_a_step(optim.Adam).load_state_dict(sgd)
    lacking = r"lacks \['mean.1', 'square.1', 'steps.1'\] and has \[\]"
    with pytest.raises(QuerykeyError, match=lacking):
        after_a_step(optim.Adam).load_state_dict(
            {key: value for key, value in adam.items() if key.endswith("0")}
        )
    with pytest.raises(QuerykeyError, match=r"has \['odd'\] too many"):
        after_a_step(optim.Adam).load_state_dict({**adam, "odd": np.ones(2)})
    optimizer = after_a_step(optim.Adam)
    with pytest.raises(ValueError, match=r"mean.1 has shape \(3,\), in the state \(2,\)"):
        optimizer.load_state_dict({**adam, "mean.1": np.ones(2)})
    assert all(np.array_equal(adam[key], value) for key, value in optimizer.state_dict().items())
    optimizer.load_state_dict({})  # that of an optimizer before its first step
    assert optimizer.state_dict() == {}


def test_a_loaded_state_has_the_type_of_the_parameters():
    w = ag.Tensor(np.ones(2, np.float32))
    adam = optim.Adam({"w": w}.values())
    adam.load_state_dict(after_a_step(optim.Adam, [(2,)]).state_dict())
    assert [adam.memory[key][0].dtype for key in ("mean", "square")] == [np.float32] * 2
