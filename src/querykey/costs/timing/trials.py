"""Whole models that check a calibration: what is predicted of them, and how long they take.

They are of the sizes that are predicted, with heads as wide as models have them: a GPU has no fast
attention for heads wider than 256 and takes twice as long with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from querykey.costs.counting.passes import PassOptions
from querykey.costs.inputs import Inputs, array
from querykey.costs.measured_model import MeasuredModel
from querykey.costs.timing.bytes_moved import BytesMoved
from querykey.costs.timing.factors import ModelTime
from querykey.costs.timing.measuring import best_times
from querykey.costs.timing.prediction import PassTime
from querykey.costs.timing.probes import filled


@dataclass(frozen=True)
class TrialModel:
    """The sizes of a stack of torch's own encoder layers, and of what goes into it."""

    width: int
    heads: int
    layers: int
    hidden: int
    batch: int
    length: int
    dtype: str

    def build(self, device: str) -> nn.Module:
        """Return the model on a device."""
        with torch.device(device):
            layers = [
                nn.TransformerEncoderLayer(
                    self.width, self.heads, self.hidden, 0.0, "gelu", batch_first=True
                )
                for _ in range(self.layers)
            ]
        return nn.Sequential(*layers).to(getattr(torch, self.dtype))

    def traffic(self) -> tuple[BytesMoved, dict[str, int]]:
        """Return what a pass of this model moves, and the sizes at which it is asked for."""
        inputs = Inputs.of(array("b", "t", self.width))
        measured = MeasuredModel(self.build("meta"), inputs, {}, {})
        return BytesMoved(measured, PassOptions()), {"b": self.batch, "t": self.length}

    def timed(
        self, device: str, clock: Callable[[], float], predicted: tuple[PassTime, PassTime]
    ) -> ModelTime:
        """Return what was predicted of this model beside what it takes on a device."""
        shape, dtype = (self.batch, self.length, self.width), getattr(torch, self.dtype)
        model, x = self.build(device), filled(*shape, device=device, dtype=dtype)
        gradient = filled(*shape, device=device, dtype=dtype)
        return ModelTime(self.dtype, predicted, best_times(model, x, gradient, clock))


F32, BF16 = "float32", "bfloat16"
# On a GPU every third model is so small that it waits for Python.
TRIALS = {
    "cpu": (
        TrialModel(192, 4, 3, 768, 2, 100, F32), TrialModel(64, 4, 2, 128, 4, 48, F32),
        TrialModel(256, 4, 4, 1024, 1, 256, F32), TrialModel(128, 4, 2, 512, 3, 33, F32),
        TrialModel(320, 4, 2, 960, 1, 130, F32),
    ),
    "cuda": (
        TrialModel(2048, 32, 3, 8192, 8, 1000, BF16), TrialModel(1024, 16, 3, 4096, 8, 700, F32),
        TrialModel(128, 2, 3, 512, 2, 64, F32), TrialModel(3072, 24, 2, 9216, 12, 600, BF16),
        TrialModel(768, 12, 3, 3072, 10, 512, F32), TrialModel(256, 4, 4, 1024, 4, 33, BF16),
        TrialModel(2560, 40, 4, 10240, 5, 1024, BF16), TrialModel(1280, 20, 2, 3840, 6, 1333, F32),
        TrialModel(64, 1, 2, 128, 4, 48, F32), TrialModel(3840, 60, 2, 15360, 4, 1900, BF16),
    ),
}  # fmt: skip


def least_trials(device: str) -> int:
    """Return how many trials a device needs: one of each dtype, and one that waits for Python."""
    return 2 if device == "cpu" else 3
