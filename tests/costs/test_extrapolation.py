"""An interpolated formula says how far it was counted, and ends where a count denied it."""

import pytest
import torch
from torch import nn

import querykey as qk


class Recent(nn.Module):
    """A loop over tokens, each of which sees the last few of a window."""

    def __init__(self, window):
        super().__init__()
        self.map, self.window = nn.Linear(6, 6), window

    def forward(self, x):
        out = []
        for t in range(x.size(1)):
            seen = x[:, max(0, t + 1 - self.window) : t + 1]
            out.append((self.map(x[:, t : t + 1]) @ seen.mT) @ seen)
        return torch.cat(out, 1)

    def by_hand(self, n, t):
        pairs = sum(min(i + 1, self.window) for i in range(t))
        return n * (t * 2 * 36 + pairs * 2 * 2 * 6)


def test_a_window_beyond_the_sizes_that_were_tried_is_no_wrong_number():
    model = Recent(70)
    report = qk.cost(model, qk.array("n", "t", 6))
    assert report.engine == "interpolation"
    assert report.valid.upper_bounds()["t"] == 61
    assert report.at(n=2, t=61).flops.forward == model.by_hand(2, 61)
    with pytest.raises(qk.CostError, match="outside the range of this formula \\(t <= 61\\)"):
        report.at(n=2, t=120)


class Blocks(nn.Module):
    """Tokens filled up to whole blocks, each of which sees the one before it, if there is one."""

    def __init__(self, block):
        super().__init__()
        self.map, self.block = nn.Linear(6, 6), block

    def forward(self, x):
        count = -(-x.size(1) // self.block)
        x = nn.functional.pad(x, (0, 0, 0, count * self.block - x.size(1)))
        blocks = [self.map(each) for each in x.split(self.block, 1)]
        seen = [(a @ b.mT) @ b for a, b in zip(blocks[1:], blocks, strict=False)]
        return torch.cat([blocks[0], *seen], 1)

    def by_hand(self, n, t):
        count = -(-t // self.block)
        return n * (count * self.block * 2 * 36 + (count - 1) * self.block**2 * 2 * 2 * 6)


@pytest.mark.parametrize("block", [64, 128])
def test_what_holds_within_one_block_is_no_formula_for_all(block):
    model = Blocks(block)
    report = qk.cost(model, qk.array("n", "t", 6), engine="interpolation")
    tried = [t for t in (*range(2, 700, 7), 1280) if report.valid.holds(n=3, t=t)]
    assert 1280 in tried
    for t in (*tried, 5, 40, 61):
        assert report.at(n=3, t=t).flops.forward == model.by_hand(3, t)
        assert report.at(n=3).at(t=t).flops.forward == model.by_hand(3, t)
    assert not report.valid.holds(n=3, t=40)
    assert report.to_dict()["below"]["valid"] == "t <= 61"
    with pytest.raises(qk.CostError, match=f"range of this formula \\(t % {block} == 0\\)"):
        report.at(n=3, t=700)


def test_a_branch_on_the_batch_is_found():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.more = nn.LSTM(6, 6, batch_first=True), nn.Linear(6, 6)

        def forward(self, x):
            out = self.inner(x)[0]
            return self.more(out) if x.size(0) > 16 else out

    report = qk.cost(Branching(), qk.array("n", "t", 6))
    assert report.engine == "interpolation"
    assert report.valid.upper_bounds()["n"] <= 16
    with pytest.raises(qk.CostError, match="outside the range of this formula \\(n <="):
        report.at(n=20, t=5)


def test_a_branch_in_a_builder_is_found():
    def build(width):
        layers = [nn.Linear(width, width)]
        return nn.Sequential(*layers, *([nn.Linear(width, width)] if width > 64 else []))

    report = qk.cost(build, qk.array("n", "width"))
    assert report.valid.upper_bounds()["width"] == 61
    with pytest.raises(qk.CostError, match="outside the range of this formula \\(width <= 61\\)"):
        report.at(n=2, width=128)
    assert report.at(n=2, width=60).flops.forward == 2 * 2 * 60 * 60


def test_what_holds_far_away_is_told_as_far():
    def build(width, layers):
        return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))

    report = qk.cost(build, qk.array("n", "width"))
    assert not report.valid.upper_bounds()
    assert "confirmed by counting as far as n=290, width=290, layers=290" in report.notes
    assert report.at(n=3, width=12288, layers=96).flops.forward == 96 * 2 * 3 * 12288**2


def test_sizes_that_are_listed_are_all_there_are():
    report = qk.cost(lambda width: nn.Linear(width, 6), qk.array("n", "width"),
                     sizes={"width": [4, 8, 16, 32, 64]})  # fmt: skip
    assert report.valid.upper_bounds() == {"width": 64}


def test_a_builder_is_asked_for_a_size_further_away():
    def build(width, heads):
        assert width % heads == 0
        return nn.Sequential(*(nn.Linear(width, width) for _ in range(heads)))

    assert qk.cost(build, qk.array("n", "width")).valid.upper_bounds()["heads"] == 24
    far = qk.cost(build, qk.array("n", "width"), near={"width": 320, "heads": 32})
    assert far.at(n=2, width=320, heads=32).flops.forward == 32 * 2 * 2 * 320**2


def test_a_branch_on_several_sizes_at_once_is_found():
    class Joint(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.Linear(6, 6)

        def forward(self, x):
            for _ in range(x.size(1)):  # turns the size into a number
                pass
            q = self.map(x)
            return self.map(q) if x.size(0) * x.size(1) > 2000 else (q @ x.mT) @ x

    report = qk.cost(Joint(), qk.array("n", "t", 6))
    assert report.engine == "interpolation"
    assert report.at(n=3, t=13).flops.forward == 3 * 13 * (2 * 36 + 2 * 2 * 13 * 6)
    with pytest.raises(qk.CostError, match="outside the range of this formula"):
        report.at(n=40, t=60)


def test_layers_that_differ_at_the_start_claim_no_fewer():
    def build(width, layers):
        wide = (nn.Linear(width, width if n < 3 else 2 * width) for n in range(layers))
        return nn.Sequential(*(nn.Sequential(w, nn.Linear(w.out_features, width)) for w in wide))

    report = qk.cost(build, qk.array("n", "width"))
    assert str(report.valid) == "layers >= 3"
    assert report.at(n=2, width=6, layers=3).flops.forward == 2 * 2 * 6 * 36


def test_a_window_claims_no_fewer_tokens():
    report = qk.cost(Recent(4), qk.array("n", "t", 6))
    assert str(report.valid) == "t >= 3"
    assert report.at(n=2, t=3).flops.forward == Recent(4).by_hand(2, 3)


@pytest.mark.parametrize(
    ("hidden", "valid"), [(lambda w: int(8 * w / 3), "width % 24 == 0"), (lambda w: 4 * w, "")]
)
def test_a_builder_given_multiples_claims_no_others_unless_they_agree(hidden, valid):
    def build(width, heads):
        assert width % heads == 0
        return nn.Sequential(nn.Linear(width, hidden(width)), nn.Linear(hidden(width), width))

    report = qk.cost(build, qk.array("n", "width"))
    assert [c for c in str(report.valid).split(", ") if "%" in c] == ([valid] if valid else [])


def test_a_crossing_between_multiples_is_one():
    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.once, self.map = nn.Linear(6, 100), nn.Linear(6, 3)

        def forward(self, x):
            return self.map(x).sum() + self.once(x[:, :1]).sum()

    fixed = qk.cost(Fixed(), qk.array("n", "t", 6), sizes={"t": 8})
    grows = qk.cost(nn.Linear(6, 6), qk.array("n", "t", 6))
    assert "t % 8 == 0" in str(fixed.valid)
    (root,) = fixed.compare(grows, "t", n=1).crossings
    assert 33 < root < 34


def test_a_cost_that_is_no_whole_number_is_refused():
    def build(width):
        return nn.Linear(6, 8 * width // 3)

    report = qk.cost(build, qk.array("n", 6), sizes={"width": [3, 6, 9, 12, 15, 18]})
    assert report.at(n=1, width=12).flops.forward == 2 * 6 * 32
    with pytest.raises(qk.CostError, match="width=4 is no size of this model"):
        report.at(n=1, width=4)
