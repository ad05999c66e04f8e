"""A run on a GPU: the same samples in the same order as on the CPU, and exact resume."""

import pytest
import torch
from tests.train.small import interrupt_at, small_config, weights

from querykey.models import load
from querykey.train import run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def losses(config):
    found = []
    run(config, lambda progress: found.append(progress.loss))
    return torch.tensor(found)


@pytest.mark.parametrize(
    ("precision", "most"), [("float64", 1e-9), ("float32", 1e-3), ("bfloat16", 0.1)]
)
def test_a_gpu_trains_as_the_cpu_does(tmp_path, precision, most):
    flags = {"dropout": 0, "precision": precision}  # each device drops other features
    on_cpu, on_gpu = (
        losses(small_config(tmp_path / device, device=device, **flags))
        for device in ("cpu", "cuda")
    )
    assert (on_cpu - on_gpu).abs().max() < most
    assert on_cpu[0] - on_cpu[-1] > 2 * most


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_stopped_run_on_a_gpu_ends_bit_equal(tmp_path, precision):
    flags = {"device": "cuda", "precision": precision}
    whole, parts = (small_config(tmp_path / name, **flags) for name in ("whole", "parts"))
    run(whole)
    assert not run(parts, interrupt_at(7)).finished
    assert run(parts).finished
    expected, found = weights(whole), weights(parts)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert load(whole.folder) is not None


def test_a_checkpoint_of_a_gpu_resumes_on_the_cpu(tmp_path):
    flags = {"dropout": 0, "precision": "float64"}
    whole = small_config(tmp_path / "whole", device="cpu", **flags)
    run(whole)
    assert not run(
        small_config(tmp_path / "parts", device="cuda", **flags), interrupt_at(7)
    ).finished
    parts = small_config(tmp_path / "parts", device="cpu", **flags)
    assert run(parts).finished
    expected, found = weights(whole), weights(parts)
    assert max((expected[name] - found[name]).abs().max() for name in expected) < 1e-8
