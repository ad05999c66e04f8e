"""Honest edges: what has no formula is listed, what is baked in is found, what branches is told."""

import math
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula

import querykey as qk
from querykey.costs import private
from querykey.costs.formulas import checking, extrapolation, symbolic


class Loop(nn.Module):
    """A Python loop over time, which turns a symbolic size into a number."""

    def __init__(self):
        super().__init__()
        self.step = nn.Linear(6, 6)

    def forward(self, x):
        state = x[:, 0]
        for t in range(x.size(1)):
            state = torch.tanh(self.step(state) + x[:, t])
        return state


def test_a_size_that_gets_baked_in_is_found_and_interpolated():
    with pytest.raises(qk.CostError, match="turned symbolic sizes into numbers \\(`t` became"):
        qk.cost(Loop(), qk.array("n", "t", 6), engine="symbolic")
    report = qk.cost(Loop(), qk.array("n", "t", 6))
    assert report.engine == "interpolation"
    assert report.at(n=2, t=9).flops.forward == 9 * 2 * 2 * 36
    assert "so the formula was interpolated" in report.notes[0]


def test_lazy_layers_are_refused_until_they_have_run_and_the_model_is_left_as_it_was():
    lazy = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 5))
    said = "the model has lazy layers, whose sizes its first run decides; run it once where"
    for model in (lazy, lambda layers: nn.Sequential(*(nn.LazyLinear(4) for _ in range(layers)))):
        with pytest.raises(qk.CostError, match=f"^{said} it is built$"):
            qk.cost(model, qk.array("n", 7))
    assert type(lazy[0]) is nn.LazyLinear
    lazy(torch.zeros(1, 7))
    assert str(qk.cost(lazy, qk.array("n", 7)).flops.forward) == "96*n"


def test_an_operation_without_a_formula_is_listed():
    class Inverse(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(6, 6)

        def forward(self, x):
            return torch.linalg.eigvalsh(self.inner(x) @ x.mT)

    report = qk.cost(Inverse(), qk.array("n", 6, 6))
    assert "aten._linalg_eigh" in report.unknown
    assert sum(report.unknown["aten._linalg_eigh"].values()) == 1
    assert "NO FORMULA" in str(report)
    assert not report.complete


def test_a_formula_can_be_given():
    class Inverse(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.eye(6))

        def forward(self, x):
            return torch.linalg.inv(x @ self.weight)

    given = {"aten.linalg_inv_ex": lambda shapes, outs: 2 * shapes[0][-1] ** 3 * shapes[0][0]}
    report = qk.cost(Inverse(), qk.array("n", 6, 6), formulas=given, backward=False)
    assert report.complete
    assert report.at(n=5).flops.forward == 5 * (2 * 216 + 2 * 216)


class Window(nn.Module):
    """Costs that are not polynomials: a branch on the length, and padding to a multiple."""

    def __init__(self, pad):
        super().__init__()
        self.map, self.pad = nn.Linear(6, 6), pad

    def forward(self, x):
        if self.pad:
            x = nn.functional.pad(x, (0, 0, 0, -x.size(1) % 8))
        elif x.size(1) > 20:
            x = x[:, :20]
        return self.map(x)


def test_a_branch_on_a_size_limits_the_range():
    report = qk.cost(Window(pad=False), qk.array("n", "t", 6))
    assert (str(report.valid), str(report.below.valid)) == ("t >= 21", "t <= 20")
    for t in (1, 9, 20, 21, 22, 9000):
        assert report.at(n=2, t=t).flops.forward == 2 * 2 * min(t, 20) * 36
    far = qk.cost(Window(pad=False), qk.array("n", "t", 6), near={"t": 100})
    assert str(far.valid) == "t >= 21"
    assert far.at(n=2, t=9000).flops.forward == 2 * 2 * 20 * 36


@pytest.mark.parametrize(
    ("near", "valid", "outside"),
    [
        (10, "t >= 10, t <= 18", 30),
        (100, "n >= 2, t >= 100", 15),  # for one row the slice needs no copy
    ],
)
def test_counts_near_a_size_claim_no_more_than_was_looked_at(near, valid, outside):
    inputs = qk.array("n", "t", 6)
    report = qk.cost(Window(pad=False), inputs, near={"t": near}, engine="interpolation")
    assert str(report.valid) == valid
    assert report.at(n=2, t=near + 3).flops.forward == 2 * 2 * min(near + 3, 20) * 36
    with pytest.raises(qk.CostError, match="outside the range of this formula"):
        report.at(n=2, t=outside)


def test_padding_to_a_multiple_is_an_exact_ceiling_or_told_for_multiples():
    report = qk.cost(Window(pad=True), qk.array("n", "t", 6))
    assert "ceiling(t/8)" in str(report.flops.forward)
    assert report.at(n=2, t=9).flops.forward == 2 * 2 * 16 * 36
    assert str(report.order("flops.forward")) == "O(n t)"
    by_counting = qk.cost(Window(pad=True), qk.array("n", "t", 6), engine="interpolation")
    assert str(by_counting.valid) == "t >= 8, t % 8 == 0"
    assert by_counting.at(n=2, t=24).flops.forward == 2 * 2 * 24 * 36
    with pytest.raises(qk.CostError, match="no polynomial"):
        qk.cost(Window(pad=True), qk.array("n", "t", 6), engine="interpolation", near={"t": 6})


class Experts(nn.Module):
    """Tokens go to one of two experts; which, only their values tell."""

    def __init__(self, sizes):
        super().__init__()
        self.gate = nn.Linear(6, 2)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(6, size), nn.Linear(size, 6)) for size in sizes
        )

    def forward(self, x):
        chosen, out = self.gate(x).argmax(-1), torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            rows = (chosen == index).nonzero()[:, 0]
            out = out.index_add(0, rows, expert(x[rows]))
        return out


def test_sizes_that_values_decide_stay_as_symbols():
    model = Experts([6, 12])
    report = qk.cost(model, qk.array("n", 6))
    assert list(report.symbols) == ["n", "picked_0", "picked_1"]
    assert str(report.valid) == "picked_0 <= n, picked_1 <= n"
    assert "`picked_0` is how many rows are picked by values in `the whole model`" in str(report)
    x = torch.randn(9, 6)
    first = int((model.gate(x).argmax(-1) == 0).sum())
    with FlopCounterMode(display=False) as real:
        model(x)
    at = report.at(n=9, picked_0=first, picked_1=9 - first)
    assert (
        at.flops.forward == real.get_total_flops() == 2 * 9 * 12 + first * 144 + (9 - first) * 288
    )
    assert report.at(n=9, picked_0=0, picked_1=9).modules["experts.0"].flops.forward == 0
    with pytest.raises(qk.CostError, match="outside the range of this formula \\(picked_0 <= n\\)"):
        report.at(n=9, picked_0=10)


def test_what_a_mask_picks_twice_is_one_size():
    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.low, self.high = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x):
            chosen, out = x.sum(-1) > 0, torch.empty_like(x)
            out[chosen] = self.high(x[chosen])
            out[~chosen] = self.low(x[~chosen])
            return out

    report = qk.cost(Halves(), qk.array("n", 6))
    assert str(report.flops.forward) == "72*picked_0 + 72*picked_1"


def test_equal_experts_cost_the_same_whatever_they_get():
    report = qk.cost(Experts([8, 8]), qk.array("n", 6))
    assert str(report.flops.forward) == "216*n"
    assert str(report.modules["experts.*"].flops.forward) == "192*n"
    assert "values decide which of the modules named `*` does what" in report.notes


class Skipping(Experts):
    """Experts that do nothing for fewer than three tokens, so that no sum bounds their cost."""

    def forward(self, x):
        chosen, out = self.gate(x).argmax(-1), x.clone()
        for index, expert in enumerate(self.experts):
            if int((chosen == index).sum()) > 2:
                out[chosen == index] = expert(x[chosen == index])
        return out


def test_a_cost_that_values_decide_is_refused_by_the_names_of_its_modules():
    model = nn.Sequential(nn.Linear(6, 6), Skipping([5, 10, 15]))
    model[1].gate = nn.Linear(6, 3)
    with pytest.raises(qk.CostError, match=r"values that go in: what `1\.experts\.\d\.0`, .* cost"):
        qk.cost(model, qk.array("n", 6))


def test_modules_that_count_together_show_all_their_classes():
    model = Experts([8, 8])
    model.experts[1] = nn.Sequential(*model.experts[1], nn.Identity())
    model.experts[0] = type("Small", (nn.Sequential,), {})(*model.experts[0])
    report = qk.cost(model, qk.array("n", 6))
    assert report.modules["experts.*"].kind == "Small, Sequential"


class Causal(nn.Module):
    """A convolution over what came before, padded by a number; torch's rule would fix all sizes."""

    def __init__(self):
        super().__init__()
        self.filter, self.map = nn.Conv1d(6, 6, 3, groups=6), nn.Linear(6, 5)

    def forward(self, x):
        return self.map(self.filter(nn.functional.pad(x.mT, (2, 0))).mT)


def test_padding_by_a_number_leaves_sizes_free():
    report = qk.cost(Causal(), qk.array("n", "t", 6))
    assert report.engine == "symbolic"
    assert str(report.flops.forward) == "96*n*t"  # 6 x 3 products, and 6 x 5, of each token
    assert report.at(n=3, t=1).flops.forward == 96 * 3


def test_a_size_that_a_size_is_divided_by_is_no_floor():
    class Triangles(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.Linear(6, 6)

        def forward(self, z):
            return torch.einsum("bikc,bjkc->bijc", self.map(z), z)

    report = qk.cost(Triangles(), qk.array("b", "n", "n", 6))
    assert str(report.flops.forward) == "12*b*n**3 + 72*b*n**2"


def test_a_formula_registered_with_torch_is_used_with_symbols_too():
    with library():
        report = qk.cost(Doubled(), qk.array("n", "t", 6), attention="math")
    assert report.engine == "symbolic"
    assert report.complete
    assert str(report.flops.forward) == "42*n*t"
    assert str(report.flops.backward) == "12*n*t"


class Doubled(nn.Module):
    """One operation of a library, with a formula of its own each way."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return torch.ops.querykey_test.double(x * self.weight)


@contextmanager
def library():
    """An operation with shapes, a derivative and FLOPs, while the context lasts."""
    with torch.library._scoped_library("querykey_test", "DEF") as made:
        made.define("double(Tensor x) -> Tensor")
        made.define("double_backward(Tensor gradient) -> Tensor")
        for name in ("double", "double_backward"):
            made.impl(name, lambda x: 2 * x, "CPU")
            made.impl(name, torch.empty_like, "Meta")
        torch.library.register_autograd(
            "querykey_test::double",
            lambda ctx, gradient: torch.ops.querykey_test.double_backward(gradient),
            lib=made,
        )
        ops = torch.ops.querykey_test
        register_flop_formula(ops.double)(lambda x, out_shape=None: 7 * math.prod(x))
        register_flop_formula(ops.double_backward)(lambda x, out_shape=None: 2 * math.prod(x))
        try:
            yield
        finally:
            del flop_registry[ops.double], flop_registry[ops.double_backward]


class Chunks(nn.Module):
    """Attention within chunks of 4, for lengths that 4 divides."""

    def __init__(self):
        super().__init__()
        self.maps = nn.Linear(6, 18)

    def forward(self, x):
        q, k, v = self.maps(x).unflatten(1, (x.size(1) // 4, 4)).chunk(3, -1)
        return (torch.softmax(q @ k.mT, -1) @ v).flatten(1, 2)


def test_sizes_that_must_divide_can_be_said():
    with pytest.raises(qk.CostError, match="one that must divide another is said with sizes="):
        qk.cost(Chunks(), qk.array("n", "t", 6), sizes={"t": 3})
    report = qk.cost(Chunks(), qk.array("n", "t", 6), sizes={"t": 4})
    assert report.at(n=2, t=12).flops.forward == 2 * 2 * 12 * 6 * 18 + 2 * 2 * 2 * 12 * 4 * 6
    with pytest.raises(qk.CostError, match="outside the range of this formula"):
        report.at(n=2, t=13)


def test_interpolation_serves_alone_where_symbols_cannot_load(monkeypatch):
    for module in (private, symbolic, extrapolation):
        monkeypatch.setattr(module, "symbolic_shapes", lambda: None)
    report = qk.cost(nn.Linear(6, 10), qk.array("n", "t", 6))
    assert report.engine == "interpolation"
    assert str(report.flops.forward) == "120*n*t"
    assert "this torch has no symbolic shapes" in report.notes[0]


def test_a_disagreement_of_the_engines_is_an_error(monkeypatch):
    honest = private.Symbols.plain
    monkeypatch.setattr(private.Symbols, "plain", lambda self, e: honest(self, e) * 2)
    with pytest.raises(qk.CostError, match="the two engines disagree: at n="):
        qk.cost(nn.Linear(6, 10), qk.array("n", "t", 6))
    with pytest.raises(qk.CostError, match="the two engines disagree about"):
        qk.cost(nn.Linear(6, 10), qk.array("n", "t", 6), engine="both")
    assert checking.QUICK


def test_a_branch_that_costs_the_same_beyond_is_no_limit():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    report = qk.cost(net, qk.images("n", 3, 8, 8))
    assert report.valid.upper_bounds() == {}
    assert report.at(n=64).flops.forward == 64 * (2 * 4 * 36 * 27 + 2 * 4 * 36 * 5)


def test_real_tensors_that_must_be_looked_at_are_counted():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.Linear(6, 6)

        def forward(self, x, keep):
            return self.map(x) if bool(keep.all()) else x

    report = qk.cost(Masked(), (torch.zeros(5, 6), torch.ones(5)))
    assert int(report.flops.forward) == 2 * 5 * 36
    assert report.engine == "interpolation"


class Sensitive(nn.Module):
    """One position costs more than the formula for many says, in products or outside them."""

    def __init__(self, products):
        super().__init__()
        self.map, self.products = nn.Linear(6, 6), products

    def forward(self, x):
        if x.size(1) == 1:
            x = self.map(x) if self.products else torch.tanh(x)
        return self.map(x)


@pytest.mark.parametrize("engine", ["auto", "interpolation"])
@pytest.mark.parametrize("products", [True, False])
def test_a_size_of_1_that_costs_otherwise_has_its_own_formula(engine, products):
    inputs = qk.array("n", "t", 6)
    report = qk.cost(Sensitive(products), inputs, engine=engine)
    assert str(report.valid) == "t >= 2"
    assert [note for note in report.notes if note.startswith("another formula holds where t is 1")]
    assert report.at(n=1, t=2).flops.forward == 2 * 2 * 36
    for n in (1, 4):
        flops = report.at(n=n, t=1).flops
        assert flops.forward == 2 * n * 36 * (2 if products else 1)
        assert flops.pointwise == 2 * 6 * n  # a bias, and another one or the tangents
    assert report.at(t=1).at(n=4).sizes == {"t": 1, "n": 4}


class Halved(nn.Module):
    """A model that does not run on one position."""

    def forward(self, x):
        if x.size(1) == 1:
            raise ValueError("one position is too few")
        return x @ x.mT


def test_a_size_of_1_at_which_a_model_does_not_run_is_refused():
    report = qk.cost(Halved(), qk.array("n", "t", 6), backward=False)
    assert str(report.valid) == "t >= 2"
    assert report.at(n=1, t=2).flops.forward == 2 * 6 * 4
    with pytest.raises(qk.CostError, match="t=1 is outside the range"):
        report.at(n=4, t=1)


def test_a_large_model_is_counted_at_sizes_of_1_too():
    large = nn.Sequential(*(nn.Linear(6, 6) for _ in range(110)), Sensitive(True))
    report = qk.cost(large, qk.array("n", "t", 6))
    assert str(report.valid) == "t >= 2"
    assert report.at(n=3, t=1).flops.forward == 2 * 3 * 36 * 112


class Branching(nn.Module):
    """Full attention, or, where `asks` says so of the sizes, attention to the last 4 tokens."""

    def __init__(self, asks):
        super().__init__()
        self.map, self.asks = nn.Linear(6, 6), asks

    def forward(self, x):
        seen = x[:, -4:] if self.asks(x.size(0), x.size(1)) else x
        return (self.map(x) @ seen.mT).softmax(-1) @ seen


@pytest.mark.parametrize(
    ("asks", "valid", "outside"),
    [
        (lambda n, t: t % 128 == 0, "t % 128 != 0", {"n": 2, "t": 256}),
        (lambda n, t: t % 10 == 0, "t % 10 != 0", {"n": 2, "t": 20}),
        (lambda n, t: t == 128, "t != 128", {"n": 2, "t": 128}),
        (lambda n, t: n * t > 1024, "n*t <= 1024", {"n": 2, "t": 513}),
    ],
)
def test_a_branch_that_is_no_bound_limits_the_range(asks, valid, outside):
    report = qk.cost(Branching(asks), qk.array("n", "t", 6))
    assert str(report.valid) == valid
    assert report.at(n=2, t=9).flops.forward == 2 * 9 * (2 * 36 + 2 * 2 * 9 * 6)
    with pytest.raises(qk.CostError, match="outside the range of this formula"):
        report.at(**outside)


def test_a_branch_that_costs_the_same_where_a_number_divides_is_no_limit():
    class Same(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.Linear(6, 6)

        def forward(self, x):
            return self.map(x + 1 if x.size(1) % 16 == 0 else x - 1)

    report = qk.cost(Same(), qk.array("n", "t", 6))
    assert str(report.valid) == "every size"
    assert "the model branches at t % 16 != 0, and costs the same elsewhere" in report.notes


def test_beyond_a_bound_that_costs_the_same_another_may_follow():
    class Tiers(Branching):
        def forward(self, x):
            return super().forward(x + 1 if x.size(1) <= 64 else x - 1)

    report = qk.cost(Tiers(lambda n, t: t > 64 and t > 500), qk.array("n", "t", 6))
    assert str(report.valid) == "t <= 500"
    assert "the model branches at t <= 64, and costs the same beyond" in report.notes


class Share(nn.Module):
    """A product with the first tokens of a row, how many of them a function says."""

    def __init__(self, number):
        super().__init__()
        self.map, self.number = nn.Linear(6, 6), number

    def forward(self, x):
        return self.map(x) @ x[:, : self.number(x.shape[1])].mT


@pytest.mark.parametrize(
    "number",
    [
        lambda t: int(t * 0.25) + 1,
        lambda t: int(t**0.5),
        lambda t: round(t * 0.3) + 1,
        lambda t: math.ceil(t * 0.5),
        lambda t: int(t * 0.29) + 1,
    ],
)
def test_a_share_of_a_size_is_right_wherever_it_is_answered(number):
    report = qk.cost(Share(number), qk.array("n", "t", 6))
    answered = 0
    for t in (*range(1, 60), 100, 200, 700):
        try:
            flops = report.at(n=3, t=t).flops.forward
        except qk.CostError:
            continue
        answered += 1
        assert flops == 2 * 3 * t * 6 * (6 + number(t))
    assert answered >= 4
