"""Several processes train as one would: the same samples, the same gradients, resumed exactly."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.train.small import small_config, weights

from querykey.train import run


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def on_ranks(world: int, folder: Path, **flags) -> None:
    """Run the driver of tests.train.small in so many processes, as torchrun would."""
    port = str(free_port())
    words = [f"{name}={value}" for name, value in flags.items()]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.train.small", str(folder), *words],
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
    on_ranks(2, tmp_path / "whole", shard=shard)
    on_ranks(2, tmp_path / "parts", shard=shard, stop=5)
    on_ranks(2, tmp_path / "parts", shard=shard)
    whole, parts = (whole_weights(small_config(tmp_path / name)) for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.slow
@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize("world", [1, 4])
def test_a_checkpoint_of_two_ranks_resumes_on_another_number(tmp_path, shard, world):
    flags = {"precision": "float64", "dropout": 0, "batch": 8, "pieces": 2}
    whole = small_config(tmp_path / "whole", **flags)
    run(whole)
    on_ranks(2, tmp_path / "parts", shard=shard, stop=5, **flags)
    if world == 1:
        run(small_config(tmp_path / "parts", **flags))
    else:
        on_ranks(world, tmp_path / "parts", shard=shard, **flags)
    expected, found = weights(whole), whole_weights(small_config(tmp_path / "parts", **flags))
    for name, tensor in expected.items():
        assert (tensor - found[name]).abs().max() < 1e-10, name
