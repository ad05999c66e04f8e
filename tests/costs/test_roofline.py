"""The least time on a device, beside times by hand: FLOPs over the peak, bytes over bandwidth."""

import pytest
import torch
from torch import nn

import querykey as qk
from querykey.costs.devices import DEVICES


def two():
    """One large product and one elementwise function."""
    return nn.Sequential(nn.Linear(4096, 4096, bias=False), nn.ReLU())


def test_an_operation_takes_the_longer_of_its_products_and_its_bytes():
    report = qk.cost(two(), qk.array("n", 4096), backward=False).at(n=8192)
    time = report.time("h200", dtype="bfloat16")
    product = 2 * 8192 * 4096 * 4096 / 989.4e12
    elementwise = 2 * 2 * 8192 * 4096 / 4.8e12
    assert time.modules["0"].seconds == pytest.approx(product)
    assert time.modules["1"].seconds == pytest.approx(elementwise)
    assert time.seconds == time.total.forward == pytest.approx(product + elementwise)
    assert (time.modules["0"].binds, time.modules["1"].binds) == ("matrix products", "bytes")
    assert (time.total.binds, time.dtype) == ("matrix products", "bfloat16")
    assert time.total.share == pytest.approx(product / (product + elementwise))


def test_few_rows_are_bound_by_the_bytes_of_the_weights():
    report = qk.cost(two(), qk.array("n", 4096), backward=False).at(n=1)
    time = report.time("a100")
    assert time.modules["0"].seconds == pytest.approx(4 * (4096**2 + 2 * 4096) / 2.039e12)
    assert time.total.binds == "bytes"
    assert str(time).startswith(
        "at least 32.9 us on a100 in float32 (32.9 us forward); bound by bytes"
    )


def test_the_dtype_is_the_one_in_which_most_of_the_time_is_spent():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.Linear(4096, 4096, bias=False, dtype=torch.bfloat16)

        def forward(self, x):
            y = self.map(x)
            return y + (y[:1].float() * 2).to(y.dtype)

    report = qk.cost(Mixed(), qk.array("n", 4096), backward=False).at(n=8192)
    assert report.time("h200").dtype == "bfloat16"


def test_single_precision_is_slower_than_half_and_backward_is_apart():
    report = qk.cost(two(), qk.array("n", 4096)).at(n=8192)
    single, half = report.time("h100"), report.time("h100", "bfloat16")
    assert single.modules["0"].forward == pytest.approx(2 * 8192 * 4096**2 / 66.9e12)
    assert single.seconds > 10 * half.seconds
    assert single.total.backward > single.total.forward * 0.9
    assert single.seconds == pytest.approx(single.total.forward + single.total.backward)


def test_every_device_has_figures_and_their_source():
    report = qk.cost(nn.Linear(3, 2), qk.array("n", 3)).at(n=2)
    for name, device in DEVICES.items():
        assert report.time(name).seconds > 0
        assert device.memory > 10**9
        assert "data sheet" in device.source


def test_the_bandwidth_of_the_processor_is_that_of_its_channels():
    """A channel of DDR5-4800 moves 8 bytes 4.8 billion times a second: 38.4 GB/s, and 8 of them."""
    assert DEVICES["cpu"].bandwidth == pytest.approx(307.2e9)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda r: r.time("h20", n=2), "there is no device `h20`; did you mean `h200`?"),
        (lambda r: r.time(), "put all sizes in: n is free"),
        (lambda r: r.time(n=2, dtype="int8"), "`int8` is no floating dtype of torch"),
    ],
)
def test_a_wrong_question_is_one_sentence(call, sentence):
    report = qk.cost(nn.Linear(3, 2), qk.array("n", 3))
    with pytest.raises(qk.CostError) as caught:
        call(report)
    assert sentence in str(caught.value)
