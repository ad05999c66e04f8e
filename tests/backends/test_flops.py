"""FLOP formulas against what runs: every matrix product of the passes and of the GPU kernels."""

import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

import querykey as qk
from querykey.backends.chunked import linear, ops, passes
from querykey.backends.triton import flops as on_gpu
from querykey.backends.triton import plans

SERIES, RANDOM = ("series", [0.5, 1.0, 2.0, 1.0]), ("random", [1.0, 11.0, 3.0])
ELU = ("elu+1", [1.0])
# Kind, group, queries, keys, causal, start; chunks are of 8 tokens, and full ones.
CALLS = {
    "causal": (SERIES, 1, 32, 32, True, 0),
    "groups": (SERIES, 3, 16, 16, True, 0),
    "one short chunk": (SERIES, 2, 5, 5, True, 0),
    "all keys": (SERIES, 2, 16, 24, False, 0),
    "later queries": (SERIES, 1, 8, 32, True, 24),
    "blind queries": (SERIES, 1, 32, 24, True, -8),
    "elu": (ELU, 2, 24, 24, True, 0),
    "random features": (RANDOM, 1, 16, 16, True, 0),
}


class Products(TorchDispatchMode):
    """Adds up 2 m n k over every product of (batch, m, k) with (batch, k, n)."""

    flops = 0
    names = ("bmm", "baddbmm", "baddbmm_", "mm", "addmm")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in self.names:
            a, b = (x for x in args[-2:] if isinstance(x, torch.Tensor))
            self.flops += 2 * math.prod(a.shape) * b.shape[-1]
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("name", CALLS)
def test_the_chunked_formulas_are_the_products_that_run(name, monkeypatch):
    monkeypatch.setattr(ops, "PAIRS", 0)  # the formulas are those of sums
    monkeypatch.setattr(passes, "CHUNK", (8, 8))
    monkeypatch.setattr(passes, "CACHE", 1)  # one chunk at a time: none is filled up with zeros
    monkeypatch.setattr("querykey.backends.chunked.flops.CHUNK", (8, 8))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    (kind, numbers), group, queries, keys, causal, start = CALLS[name]
    q, k, v = (torch.randn(shape) for shape in ((2, group, queries, 5), (2, keys, 5), (2, keys, 3)))
    how = (kind, numbers, causal, start)
    with Products() as ran:
        out, inverse, _ = ops._forward(q, k, v, None, None, None, *how, False)
    formula = flop_registry[torch.ops.querykey.chunked_forward]
    assert formula(q, k, v, None, None, None, *how, False) == ran.flops > 0
    with Products() as ran:
        ops._backward(torch.ones_like(out), None, out, inverse, q, k, v, None, None, None, *how)
    formula = flop_registry[torch.ops.querykey.chunked_backward]
    assert formula(None, None, out, inverse, q, k, v, None, None, None, *how) == ran.flops > 0


def test_the_sums_of_a_state_are_counted_to_the_last_key():
    shapes = ((1, 1, 4, 5), (1, 9, 5), (1, 9, 3))
    formula = flop_registry[torch.ops.querykey.chunked_forward]
    some, more = (
        formula(*shapes, None, None, None, *SERIES, True, 0, keep, out_val=None)
        for keep in (False, True)
    )
    rows = passes.row_count(5, *SERIES)
    assert more - some == 2 * rows * 4 * (9 - 4)


def test_torch_counts_them():
    q, k, v = (torch.randn(2, 3, 40, 4, requires_grad=True) for _ in range(3))
    with FlopCounterMode(display=False) as counter:
        linear.attend(q, k, v, qk.Kernel(qk.Quadratic()), causal=True).sum().backward()
    counted = counter.get_flop_counts()["Global"]
    assert counted[torch.ops.querykey.chunked_forward] > 0
    assert counted[torch.ops.querykey.chunked_backward] > 0


def loop(queries, keys, size, width, causal, chunk):
    """Count multiply-adds of the kernels, forward, token by token; chunk is None where all meet."""
    total = 0
    square, rest = size * size * width, size * width + size * size
    for _ in range(keys):
        if chunk is not None:
            total += size * (size + 8) // 2 * width + rest
    for _ in range(queries):
        if chunk is not None:
            total += square + rest
        met = keys if chunk is None else min(queries, chunk) * causal
        total += met * (size + width)
    return 2 * total


@pytest.mark.parametrize(("queries", "keys", "causal"), [(50, 50, True), (7, 90, False)])
@pytest.mark.parametrize("near", [0, 100])
def test_the_formulas_of_the_gpu_kernels_against_a_loop(queries, keys, causal, near, monkeypatch):
    launch = (plans.Launch(16, 16, 4, 1),) * 2
    monkeypatch.setitem(plans.PLANS, 16, plans.Plan(8, (near, near), launch, launch, launch))
    q, k, v = (3, 2, queries, 16), (3, keys, 16), (3, keys, 32)
    found = on_gpu.forward(q, k, v, None, None, None, causal, False)
    chunk = 8 if near == 0 else None
    for_queries = loop(queries, 0 if chunk else keys, 16, 32, causal, chunk)
    for_keys = loop(0, keys, 16, 32, causal, chunk)
    assert found == 3 * (2 * for_queries + for_keys)


@pytest.fixture(scope="module")
def counted():
    """What the kernels multiply in Triton's interpreter, and what the formulas say."""
    command = [sys.executable, Path(__file__).with_name("triton_flops_driver.py")]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("name", ["every pair", "one document"])
def test_the_gpu_kernels_multiply_what_the_formulas_say(name, counted):
    for ran, formula in counted[name]:
        assert ran == formula > 0


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_a_causal_document_counts_as_a_causal_sequence(counted):
    sequence, document = counted["causal sums"], counted["one causal document"]
    assert [formula for _, formula in document] == [formula for _, formula in sequence]
    # A document has no table before its first chunk, and none is read.
    assert all(0 < part < whole for (part, _), (whole, _) in zip(document, sequence, strict=True))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_the_gpu_kernels_multiply_with_ones_beside(counted):
    lanes, group, size, width, queries, keys = 2, 2, 16, 32, 64, 96
    ones = 2 * lanes * size * (width + size)  # a token's, for sums of degree 0
    (ran, formula), (back, formula_back) = counted["sums of all keys"]
    assert ran - formula == ones * keys
    assert back - formula_back == ones * group * queries


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_the_formulas_of_causal_sums_are_above_by_what_they_say(counted):
    lanes, group, size, width, tokens, chunk, tile = 2, 2, 16, 32, 96, 32, 16
    square, rest = size * size * width, size * width + size * size
    hidden = sum(chunk - (t // tile * tile + tile - t // chunk * chunk) for t in range(tokens))
    ends = chunk * (3 * square // 4 + rest)  # sums of the last chunk, or of the first
    ones = (tokens - chunk) * size * (width + size)
    (ran, formula), (back, formula_back) = counted["causal sums"]
    above = group * (hidden * (size + width) + chunk * square) + ends - ones
    assert formula - ran == 2 * lanes * above
    above = group * (hidden * (4 * size + 3 * width) + chunk * square + ends - ones)
    assert formula_back - back == 2 * lanes * (above + chunk * 2 * square)


def test_the_state_is_cheaper_to_read_than_a_long_cache():
    width = qk.Quadratic().width(64)
    shapes = [(16, 1, 64), (16, 64), (16, 64), None, None, (16, width, 64), (16, width), None]
    assert on_gpu.decode(*shapes) == 16 * 2 * 2 * width * 65


def test_every_operator_has_a_formula():
    names = {name for name in dir(torch.ops.querykey) if name.startswith(("chunked", "triton"))}
    assert names
    registered = {str(op).removeprefix("querykey.") for op in flop_registry}
    assert names <= registered
