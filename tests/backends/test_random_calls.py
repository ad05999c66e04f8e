"""No backend differs from the equation in silence, whatever the call: drawn at random."""

import math
import random
from collections import Counter

import pytest
import torch
from tests.backends import random_calls

import querykey as qk


def test_random_calls_agree_with_the_equation():
    counts = Counter()
    random_calls.run(first=0, seconds=0, examples=250, counts=counts)
    assert counts["sdpa"] > 40
    assert counts["chunked"] > 20


@pytest.mark.full
def test_random_calls_agree_for_an_hour():
    counts, first = Counter(), random.randrange(10**6)
    print(f"seed {first}")
    random_calls.run(first, seconds=3600, examples=200, counts=counts)
    print(dict(counts))
    assert counts["drawn"] > 1000


@pytest.mark.parametrize("name", ["out", "k"])
def test_a_backend_that_errs_a_little_is_found(name, monkeypatch):
    draw = torch.Generator().manual_seed(0)
    arrays = {n: torch.randn(1, 2, 5, 3, generator=draw, dtype=torch.float64) for n in "qkv"}
    call = random_calls.Call(arrays, {"mask": qk.Causal()})
    assert random_calls.differences(call) == []
    attend = qk.attend

    def wrong(q, k, v, backend, **options):
        if backend == "reference":
            return attend(q, k, v, backend=backend, **options)
        if name == "k":
            k = k.detach() + 0.999 * (k - k.detach())
        out = attend(q, k, v, backend=backend, **options)
        return out * (1 + 1e-7) if name == "out" else out

    monkeypatch.setattr(qk, "attend", wrong)
    assert {found.split(":")[0] for found in random_calls.differences(call)} == {"sdpa", "auto"}


def test_a_sum_of_features_that_nearly_vanishes_is_no_difference_and_is_told_of():
    q, k, v = (torch.tensor([[[[x]]]], dtype=torch.float64) for x in (0.8380, -0.59662, -0.892))
    spec = {"mechanism": qk.Kernel(qk.Polynomial(2, 0.5)), "mask": qk.FULL}
    call = random_calls.Call({"q": q, "k": k, "v": v}, spec)
    assert random_calls.rounding(call) > 1e-6
    assert random_calls.differences(call) == []
    note = "a query whose visible similarities are all near 0 loses digits"
    assert note in qk.explain(q, k, v, **spec).notes
    near = random_calls.Call({"q": q, "k": -k, "v": v}, spec)
    assert random_calls.rounding(near) < 1e-15


def test_gates_that_leave_one_similarity_near_0_are_told_from_a_difference():
    """Without them the other keys would outweigh it, and no digits would be lost."""
    shape, real = (1, 1, 3, 1), torch.tensor([[True, True, False]])
    q, v = (torch.full(shape, x, dtype=torch.float64) for x in (-1.0, 0.5))
    k = torch.tensor([2.0, 1.002, 5.0], dtype=torch.float64).reshape(shape)
    decay = torch.tensor([[[-1.0, -40.0, -40.0]]], dtype=torch.float64)
    spec = {"mechanism": qk.Kernel(qk.Quadratic()), "mask": qk.Causal() & qk.Padding(real)}
    spec["start"] = torch.tensor([0])
    arrays = {"q": q, "k": k, "v": v, "decay": decay}
    left = random_calls.what_is_left(random_calls.Call(arrays, spec))
    last = [math.exp(-40.0), 1.0, 1.0]  # a padded token's gate counts as 0
    assert left[0, 0, 2].tolist() == pytest.approx(last, rel=1e-12)
    assert left[0, 0, 1, :2].tolist() == pytest.approx(last[:2], rel=1e-12)
    gated = random_calls.rounding(random_calls.Call(arrays, spec))
    assert gated > 1e-6
    arrays["decay"] = 0 * decay
    assert random_calls.rounding(random_calls.Call(arrays, spec)) < gated / 1e3
