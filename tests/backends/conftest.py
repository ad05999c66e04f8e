"""Fixtures for tests of kernel attention in chunks."""

import math

import pytest
import torch

from querykey.backends.chunked import ops, pairs, passes


@pytest.fixture
def poisoned(monkeypatch):
    """Fill every buffer and result that is not written to with NaN."""

    def poison(x):
        return x.fill_(math.nan) if x.dtype.is_floating_point and x.device.type == "cpu" else x

    new_empty, empty_like = torch.Tensor.new_empty, torch.empty_like
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *a, **o: poison(new_empty(*a, **o)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **o: poison(empty_like(*a, **o)))


@pytest.fixture(params=["sums", "pairs"])
def form(request, monkeypatch):
    """However many the tokens, by sums over features or by pairs of tokens."""
    monkeypatch.setattr(ops, "PAIRS", 0 if request.param == "sums" else 1 << 30)
    return request.param


@pytest.fixture
def small_chunks(form, monkeypatch):
    """Chunks of 8 tokens, four to a panel at most, so that short sequences cross every edge."""
    monkeypatch.setattr(passes, "CHUNK", (8, 8))
    monkeypatch.setattr(passes, "CACHE", 1 << 15)
    monkeypatch.setattr(pairs, "SIZE", 8)
    monkeypatch.setattr(pairs, "CACHE", 1 << 12)
