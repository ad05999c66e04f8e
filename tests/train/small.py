"""A run small enough for a test, and a driver that other processes start."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from querykey.train import Progress, TrainConfig, read_config, run
from querykey.train.ranks import joined, spread
from querykey.train.run import make_trainer

TEXT = "the quick brown fox jumps over the lazy dog; pack my box with five dozen jugs. " * 40


def small_config(folder: Path, **flags: Any) -> TrainConfig:
    """A character model with dropout, whose steps have pieces and whose rate changes."""
    text = folder / "text.txt"
    if not text.exists():
        folder.mkdir(parents=True, exist_ok=True)
        text.write_text(TEXT)
    sections = {
        "folder": str(folder / "run"),
        "data": {"name": "text", "path": str(text), "tokenizer": "characters", "length": 13},
        "model": {"layers": 2, "heads": 2, "width": 16, "dropout": 0.1},
        "optimizer": {"warmup": 3, "rate": 1e-2},
        "loop": {
            "steps": 12, "batch": 5, "pieces": 2, "evaluate_every": 4, "save_every": 5, "seed": 3,
        },
    }  # fmt: skip
    return read_config(sections, {name: str(value) for name, value in flags.items()})


def weights(config: TrainConfig) -> dict[str, torch.Tensor]:
    """The tensors of the newest checkpoint of a run."""
    from safetensors.torch import load_file

    folders = sorted(Path(config.folder, "checkpoints").glob("step-*"))
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(folders[-1].glob("*.safetensors")):
        tensors |= {name: tensor.clone() for name, tensor in load_file(file).items()}
    return tensors


def interrupt_at(step: int):
    """Return what sends this process a Ctrl-C after so many steps."""

    def tell(progress: Progress) -> None:
        if progress.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    return tell


def drive(jobs: list[tuple[str, dict[str, str]]]) -> None:
    """Do several runs, one after the other, on the ranks that the environment names."""
    torch.set_num_threads(1)
    with joined(torch.device("cpu")):
        for folder, flags in jobs:
            stop = int(flags.pop("stop", 0))
            run(small_config(Path(folder), **flags), interrupt_at(stop))


PIECES = (1, 2, 4, 8, 16, 32)


def copying(folder: Path, pieces: int) -> TrainConfig:
    """32 words of unequal lengths, each to be copied, in float64."""
    return read_config(
        {
            "folder": str(folder / f"pieces-{pieces}"),
            "data": {"name": "copy", "length": 21, "samples": 64},
            "model": {"width": 16, "heads": 2, "layers": 2},
            "loop": {"batch": 32, "pieces": pieces, "precision": "float64"},
        }
    )


def gradients(folder: Path) -> None:
    """Write the gradients of the first step, cut into pieces in every way, on these ranks."""
    torch.set_num_threads(1)
    with joined(torch.device("cpu")) as ranks:
        for pieces in PIECES:
            trainer = make_trainer(copying(folder, pieces), ranks)
            batches = trainer.pieces(0)
            assert len(batches) == min(pieces, 32 // ranks.world)
            trainer.gradients(batches)
            named = trainer.model.named_parameters()
            tensors = {name: parameter.grad for name, parameter in named}
            save_file(tensors, folder / f"{ranks.world}-{pieces}-{ranks.rank}.safetensors")


def ending() -> None:
    """Part from a group whose copies live on, and check that its threads have ended."""
    sys.setswitchinterval(1000)  # a thread gets Python's lock only where it is given up
    torch.set_num_threads(1)
    threads = len(os.listdir("/proc/self/task"))
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(50)))
    with joined(torch.device("cpu")) as ranks:
        learner = spread(model, ranks, shard=False)
        for _ in range(3):
            learner(torch.ones(2, 8)).sum().backward()
        assert len(os.listdir("/proc/self/task")) > threads
    assert len(os.listdir("/proc/self/task")) == threads


if __name__ == "__main__":
    if sys.argv[1] == "ending":
        ending()
    elif sys.argv[1] == "gradients":
        gradients(Path(sys.argv[2]))
    else:
        drive(json.loads(sys.argv[1]))
