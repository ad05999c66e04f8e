"""Several processes train as one would: the same samples, the same gradients, resumed exactly."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.train.small import small_config, weights

from querykey.models import load
from querykey.train import run
from querykey.train.checkpoints import unique_tensors


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def on_ranks(world: int, *jobs: tuple[Path, dict]) -> None:
    """Do runs one after the other in so many processes, as torchrun would start them."""
    port = str(free_port())
    words = json.dumps([[str(folder), flags] for folder, flags in jobs])
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.train.small", words],
            env=os.environ
            | {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
            | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
            stderr=subprocess.PIPE,
        )
        for rank in range(world)
    ]
    errors = [process.communicate(timeout=300)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0] * world, errors


def whole_weights(config):
    """Weights of the last checkpoint, the shards of each tensor put together."""
    from querykey.train import checkpoints
    from querykey.train.ranks import Ranks
    from querykey.train.run import make_trainer

    trainer = make_trainer(config, Ranks())
    trainer.resume()
    assert trainer.step == config.loop.steps
    assert checkpoints.latest(trainer.folder.checkpoints).step == config.loop.steps
    return trainer.tensors()


@pytest.mark.slow
@pytest.mark.parametrize("shard", [False, True])
def test_two_ranks_resume_bit_equal(tmp_path, shard):
    flags = {"shard": shard}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    on_ranks(2, (whole, flags), (parts, flags | {"stop": 5}), (parts, flags))
    expected, resumed = (whole_weights(small_config(folder)) for folder in (whole, parts))
    assert expected.keys() == resumed.keys()
    assert all(torch.equal(expected[name], resumed[name]) for name in expected)
    model = load(parts / "run")  # written by the first rank, from the shards of both
    for name, tensor in unique_tensors(model).items():
        assert torch.equal(tensor, resumed[f"model.{name}"])


@pytest.mark.parametrize(
    ("shard", "world"),
    [
        pytest.param(True, 1, marks=pytest.mark.slow),
        pytest.param(False, 1, marks=pytest.mark.full),
        pytest.param(False, 4, marks=pytest.mark.full),
        pytest.param(True, 4, marks=pytest.mark.full),
    ],
)
def test_a_checkpoint_of_two_ranks_resumes_on_another_number(tmp_path, shard, world):
    flags = {"precision": "float64", "dropout": 0, "batch": 8, "pieces": 2}
    whole = small_config(tmp_path / "whole", **flags)
    run(whole)
    parts = tmp_path / "parts"
    on_ranks(2, (parts, flags | {"shard": shard, "stop": 5}))
    if world == 1:
        run(small_config(parts, **flags))
    else:
        on_ranks(world, (parts, flags | {"shard": shard}))
    expected, resumed = weights(whole), whole_weights(small_config(parts, **flags))
    for name, tensor in expected.items():
        assert (tensor - resumed[name]).abs().max() < 1e-10, name
