"""The peak of memory, beside what torch's own profiler sees the CPU's allocator hand out."""

from functools import partial

import pytest
import sympy
import torch
from tests.costs.measured import measured_peak
from torch import nn
from torch.utils.checkpoint import checkpoint

import querykey as qk
from querykey.costs.memory.peak import peak_formulas
from querykey.costs.memory.timeline import Event, Piece
from querykey.costs.memory.training import STATES


class Block(nn.Module):
    """Attention and a map, with a residual; equal blocks are repeated, not run."""

    def __init__(self, width):
        super().__init__()
        self.maps, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.maps(x).chunk(3, -1)
        return x + self.out((q @ k.mT).softmax(-1) @ v).relu()


def blocks(layers, width=10):
    return nn.Sequential(nn.Embedding(23, width), *(Block(width) for _ in range(layers)))


CASES = {
    "blocks": (lambda: blocks(7), qk.tokens("b", "t"), {"b": 3, "t": 11}),
    "encoder layers": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), 5, enable_nested_tensor=False
        ),
        qk.array("b", "t", 8),
        {"b": 2, "t": 13},
    ),
    "norms and gates": (
        lambda: nn.Sequential(
            nn.Linear(6, 24), nn.GLU(), nn.LayerNorm(12), nn.GELU(), nn.Linear(12, 5)
        ),
        qk.array("b", "t", 6),
        {"b": 5, "t": 7},
    ),
    "a loop": (lambda: nn.RNN(6, 7, batch_first=True), qk.array("b", "t", 6), {"b": 3, "t": 9}),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("train", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("name", CASES)
def test_the_peak_is_that_of_the_cpu_allocator(name, train):
    make, inputs, sizes = CASES[name]
    model = make()
    report = qk.cost(model, inputs, attention="math", backward=train)
    ours = report.peak("train" if train else "inference", **sizes)
    theirs = measured_peak(model, inputs, sizes, train)
    assert ours.bytes == pytest.approx(theirs, rel=0.01)
    assert sum(row.bytes for row in ours.alive) == ours.bytes
    assert report.at(**sizes).peak_bytes == ours.bytes


@pytest.mark.parametrize("name", ["blocks", "encoder layers"])
def test_the_peak_with_checkpointing_is_that_of_the_cpu_allocator(name):
    """Without the state of the random numbers, 5056 bytes that torch keeps for every layer."""
    make, inputs, sizes = CASES[name]
    model = make()
    report = qk.cost(model, inputs, attention="math").at(**sizes)
    plain, ours = report.peak_bytes, report.training_bytes("sgd", checkpointing=True).total
    for layer in model.layers if name == "encoder layers" else model:
        layer.forward = partial(
            checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False
        )
    assert ours == pytest.approx(measured_peak(model, inputs, sizes, True), rel=0.01)
    assert ours < 0.7 * plain


def test_checkpointed_layers_with_fused_attention_keep_only_what_they_get():
    """At the end 6 layers keep their input; one of them also has what fused attention keeps."""
    model = CASES["encoder layers"][0]()
    report = qk.cost(model, qk.array("b", "t", 8), attention="flash").at(b=20, t=30)
    parts = report.training_bytes("sgd", checkpointing=True)
    plain = report.training_bytes("sgd")
    one = 4 * 20 * 30 * 8  # bytes of a layer's input
    assert 6 * one < parts.activations < plain.activations / 2
    assert parts.weights == plain.weights


@pytest.mark.parametrize("layers", [3, 6])
def test_the_formula_of_the_peak_is_the_peak_at_every_size(layers):
    report = qk.cost(blocks(layers), qk.tokens("b", "t"), attention="math")
    for sizes in ({"b": 1, "t": 2}, {"b": 50, "t": 7}, {"b": 3, "t": 90}):
        values = {report.symbols[name]: size for name, size in sizes.items()}
        assert report.peak_bytes.subs(values) == report.peak(**sizes).bytes
        assert report.inference_bytes.subs(values) == report.peak("inference", **sizes).bytes


def test_the_formula_of_the_peak_takes_three_of_equal_layers_and_one_check():
    class Counted(Block):
        calls = 0

        def forward(self, x):
            Counted.calls += 1
            return super().forward(x)

    model = nn.Sequential(nn.Embedding(23, 10), *(Counted(10) for _ in range(7)))
    report = qk.cost(model, qk.tokens("b", "t"), attention="math")
    before = Counted.calls
    assert report.peak_bytes.free_symbols
    assert Counted.calls == before + 3 + 7


def test_a_peak_may_be_one_formula():
    report = qk.cost(nn.Linear(3, 2), qk.array("n", 3))
    assert str(report.inference_bytes) == "20*n + 32"  # 3 and 2 numbers a row, and 8 weights


def test_what_is_alive_at_the_peak_is_named_by_module():
    peak = qk.cost(blocks(5), qk.tokens("b", "t"), attention="math").peak(b=40, t=30)
    rows = {(row.module, row.made_by): (row.times, row.bytes) for row in peak.alive}
    assert rows["", "weights"] == (21, 4 * (23 * 10 + 5 * (10 * 30 + 30 + 110)))
    assert rows["", "inputs"] == (1, 8 * 40 * 30)
    assert rows["*", "aten._softmax"] == (5, 5 * 4 * 40 * 30 * 30)


def test_a_peak_is_the_largest_of_formulas_of_which_none_is_for_nothing():
    n, m, k = sympy.symbols("n m k")

    def taken(*sizes):
        return [Event(Piece("", "x", size), up) for size in sizes for up in (True, False)]

    formulas = peak_formulas(taken(n, 2 * n, n + 1, n * m, n + n * m / 2 - 1), lambda e: e)
    # n + nm/2 - 1 lies below the mean of 2n and nm, and n + 1 below 2n where n is at least 1.
    assert set(formulas) == {2 * n, n * m}
    # What all of them have in common, such as weights, changes nothing.
    beside = taken(2 * n + k, n * m + k, n + n * m / 2 + k - 1)
    assert set(peak_formulas(beside, lambda e: e)) == {2 * n + k, n * m + k}
    assert set(peak_formulas(taken(n, n + 1, sympy.Integer(7)), lambda e: e)) == {n + 1, 7}


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("adamw", torch.optim.AdamW),
        ("sgd", torch.optim.SGD),
        ("momentum", lambda p: torch.optim.SGD(p, momentum=0.9)),
        ("rmsprop", torch.optim.RMSprop),
        ("adagrad", torch.optim.Adagrad),
    ],
)
def test_an_optimizer_keeps_what_torchs_own_keeps(name, make):
    model = blocks(2)
    model[0].weight.requires_grad_(False)
    optimizer = make([p for p in model.parameters() if p.requires_grad])
    model(torch.zeros(1, 2, dtype=torch.long)).sum().backward()
    optimizer.step()
    tensors = [t for state in optimizer.state.values() for t in state.values()]
    kept = sum(t.nbytes for t in tensors if isinstance(t, torch.Tensor))
    parts = qk.cost(model, qk.tokens("b", "t")).at(b=2, t=3).training_bytes(name)
    assert parts.optimizer == kept
    assert parts.weights == sum(p.nbytes for p in model.parameters())
    assert parts.gradients == sum(p.nbytes for p in model.parameters() if p.requires_grad)
    assert name in STATES


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_training_in_another_precision_has_a_formula(dtype):
    """An earlier version refused models on the CPU unless all sizes were put in first."""
    report = qk.cost(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 7)), qk.array("n", 3))
    formula = report.training_bytes(dtype=dtype)
    for n in (5, 8):
        found = report.at(n=n).training_bytes(dtype=dtype)
        assert formula.activations.subs(report.symbols["n"], n) == found.activations
        assert formula.weights == found.weights


def test_training_takes_its_parts():
    report = qk.cost(blocks(6), qk.tokens("b", "t"), attention="math").at(b=30, t=20)
    parts = report.training_bytes()
    assert parts.total == report.peak_bytes + parts.optimizer
    half = report.training_bytes(dtype="bfloat16")
    assert (half.weights * 2, half.gradients * 2) == (parts.weights, parts.gradients)
    assert half.activations < 0.6 * parts.activations
    again = report.training_bytes(checkpointing=True)
    assert again.activations < 0.4 * parts.activations
    shared = report.training_bytes(sharding=4)
    assert (shared.weights, shared.activations) == (-(-parts.weights // 4), parts.activations)
    assert shared.gathered == 2 * 4 * (10 * 30 + 30 + 110)
    uneven = report.training_bytes(sharding=7)  # a rank holds whole bytes, the last one fewer
    for part in ("weights", "gradients", "optimizer"):
        whole, one = getattr(parts, part), getattr(uneven, part)
        assert isinstance(one, int)
        assert one * 6 < whole <= one * 7
    for wrong in (
        lambda: report.training_bytes("adamm"),
        lambda: report.training_bytes(dtype="int8"),
        lambda: report.training_bytes(sharding=0),
        lambda: qk.cost(nn.Linear(2, 3), qk.array("n", 2)).training_bytes(checkpointing=True),
    ):
        with pytest.raises(qk.CostError):
            wrong()


def test_the_largest_size_that_fits_fits_and_the_next_does_not():
    report = qk.cost(blocks(3), qk.tokens("b", "t"), attention="math")
    for size, given in (("b", {"t": 40}), ("t", {"b": 5})):  # linear, quadratic
        most = report.largest(size, 10**7, **given)
        needed = [report.at(**{size: n}, **given).training_bytes().total for n in (most, most + 1)]
        assert needed[0] <= 10**7 < needed[1]
    assert report.largest("b", 1000, t=40) == 0
    assert report.largest("b", "h200", t=40) > report.largest("b", "h100", t=40) > 10**4
    with pytest.raises(qk.CostError, match="put the other sizes in"):
        report.largest("b", 10**7)
    with pytest.raises(qk.CostError, match=r"there is no device `h20`; did you mean `h200`\?"):
        report.largest("b", "h20", t=3)


@pytest.mark.parametrize("places", [29, 64])
def test_no_size_beyond_the_range_of_the_model_fits(places):
    class Placed(nn.Module):
        def __init__(self):
            super().__init__()
            self.positions, self.map = nn.Parameter(torch.ones(places, 8)), nn.Linear(8, 8)

        def forward(self, x):
            return self.map(x + self.positions[: x.shape[1]])

    assert qk.cost(Placed(), qk.array("b", "t", 8)).largest("t", "h200", b=1) == places
