"""Roundings at which a derivative ends: beside the scale they keep, nothing before them learns."""

from __future__ import annotations

import torch
from torch.overrides import TorchFunctionMode

from querykey.laws.blaming.guilty_module import GuiltyModule, describe, guilty_part
from querykey.laws.blaming.recorder import Recorder
from querykey.laws.run import Setting
from querykey.laws.trial import Evidence, Outcome

ROUNDS = {"round", "round_"}


class Roundings(TorchFunctionMode):
    """Notes the module in which something is rounded that a derivative then arrives at.

    What passes by a rounding (`x + (x.round() - x).detach()`) brings none to it.
    """

    def __init__(self, model: torch.nn.Module, recorder: Recorder):
        super().__init__()
        self.model, self.recorder = model, recorder
        self.ending: list[GuiltyModule] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in ROUNDS and result.requires_grad:
            call = self.recorder.unfinished
            module = describe(call) if call else guilty_part(self.model, "")

            def arrived(derivative: torch.Tensor) -> None:
                if bool((derivative != 0).any()):
                    self.ending.append(module)

            result.register_hook(arrived)
        return result


def ends_at_rounding(setting: Setting, ending: list[GuiltyModule]) -> Outcome:
    """Return the advice for a model in which a derivative ends at a rounding."""
    note = (
        "a derivative ends at round(), which passes none on, so what is rounded learns by its "
        "scale alone, if at all: is x + (x.round() - x).detach() meant?"
    )
    return Outcome(1.0, note, setting, evidence=Evidence(module=ending[0]), advice=True)
