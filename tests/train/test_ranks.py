"""Several processes train as one would: the same samples, the same gradients, resumed exactly."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.train.small import PIECES, copying, small_config, weights

from querykey.models import load
from querykey.train import run
from querykey.train.checkpoints import unique_tensors
from querykey.train.ranks import Ranks
from querykey.train.run import make_trainer


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def on_ranks(world: int, *jobs: tuple[Path, dict]) -> None:
    """Do runs one after the other in so many processes, as torchrun would start them."""
    start(world, json.dumps([[str(folder), flags] for folder, flags in jobs]))


def start(world: int, *words: str) -> None:
    """Run the driver in so many processes that know of each other, to their good end."""
    port = str(free_port())
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.train.small", *words],
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

    trainer = make_trainer(config, Ranks())
    trainer.resume()
    assert trainer.step == config.loop.steps
    assert checkpoints.latest(trainer.folder.checkpoints).step == config.loop.steps
    return trainer.tensors()


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])  # 1: tests/train/test_objectives.py
def test_any_cut_of_a_step_over_pieces_and_ranks_gives_one_gradient(tmp_path, world):
    """Unequal lengths, float64. The definition: every sample alone, on one rank."""
    start(world, "gradients", str(tmp_path))
    trainer = make_trainer(copying(tmp_path / "whole", 1), Ranks())
    samples = [trainer.batch_at(range(i, i + 1)) for i in range(32)]
    terms = [sample.terms["loss"] for sample in samples]
    assert len(set(terms)) > 3
    losses = [trainer.objective.sums(trainer.model, sample)["loss"] for sample in samples]
    names, parameters = zip(*trainer.model.named_parameters(), strict=True)
    wanted = torch.autograd.grad(sum(losses) / sum(terms), parameters)
    for pieces in PIECES:
        for rank in range(world):
            found = load_file(tmp_path / f"{world}-{pieces}-{rank}.safetensors")
            for name, gradient in zip(names, wanted, strict=True):
                assert (found[name] - gradient).abs().max() < 1e-10, (pieces, rank, name)


def test_no_thread_of_a_group_outlives_it():
    """Such a thread would need Python's lock after Python has begun to end, and abort."""
    start(2, "ending")


OWN = """
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(64, 8), nn.Linear(8, 64)
        self.unused = nn.Linear(3, 3)
    def forward(self, x):
        return self.out(self.table(x))

class Routed(nn.Module):
    \"""Every fifth token goes through a layer that rows without such a token leave alone.\"""
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(64, 8), nn.Linear(8, 64)
        self.rare = nn.Linear(8, 8)
    def forward(self, ids):
        x, chosen = self.table(ids), (ids == 5)[..., None]
        if chosen.any() or not self.training:
            x = torch.where(chosen, self.rare(x), x)
        return self.out(x)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shard"), [("Own", False), ("Own", True), ("Routed", False)])
def test_a_model_with_unused_parameters_is_trained_on_two_ranks(tmp_path, name, shard):
    (tmp_path / "own.py").write_text(OWN)
    flags = {"model-name": f"{tmp_path / 'own.py'}:{name}", "precision": "float64", "dropout": 0}
    flags |= {"batch": 8, "pieces": 2, "steps": 4}
    on_ranks(2, (tmp_path / "two", flags | {"shard": shard}))
    alone = small_config(tmp_path / "one", **flags)
    run(alone)
    expected, found = weights(alone), whole_weights(small_config(tmp_path / "two", **flags))
    for name, tensor in expected.items():
        assert (tensor - found[name]).abs().max() < 1e-10, name


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
