"""One traced pass over a model, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from querykey.costs.counting.counts import Formula
from querykey.costs.counting.data_dependent import DataDependentSizes
from querykey.costs.counting.equal_layers import two_of_equal_layers
from querykey.costs.counting.fused_attention import attention_as
from querykey.costs.counting.restoring import restored
from querykey.costs.counting.tensors import TensorMaker
from querykey.costs.counting.trace import BACKWARD, Trace
from querykey.costs.inputs import CostError, Inputs, NoBackwardError
from querykey.targets import floating, quiet


@dataclass(frozen=True)
class PassOptions:
    """The user's options that hold for every pass."""

    backward: bool = True
    attention: str = "flash"
    loss: Callable[[Any], torch.Tensor] | None = None
    formulas: Mapping[str, Formula] = field(default_factory=dict)


@dataclass(frozen=True)
class PassSetting:
    """Where one pass runs: on which device, under which mode of torch, at which sizes.

    Without a mode, real tensors run. With `data_dependent`, sizes that depend on values get names.
    With `copy_layers`, only two of equal layers run, and the others are taken to cost the same.
    """

    sizes: Mapping[str, Any]
    device: str = "cpu"
    mode: Any = field(default_factory=nullcontext)
    data_dependent: DataDependentSizes | None = None
    copy_layers: bool = False


def run_pass(model: nn.Module, inputs: Inputs, options: PassOptions, setting: PassSetting) -> Trace:
    """Run the model forward, and backward where the options say so, and return the trace."""
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    valueless = not isinstance(setting.mode, nullcontext)
    trace = Trace(model, frozenset(options.formulas), valueless, setting.data_dependent)
    make = TensorMaker(setting.mode, setting.device, setting.sizes, dtype)
    weights = {name: make.weight(p) for name, p in model.named_parameters()}
    buffers = {name: make.weight(b, copy=True) for name, b in model.named_buffers()}
    with ExitStack() as stack:
        stack.enter_context(restored(model))
        stack.enter_context(quiet())
        stack.enter_context(setting.mode)
        stack.enter_context(torch.device(setting.device))
        stack.enter_context(torch.enable_grad())
        # oneDNN's fused layers (an LSTM in one operation) would hide their matrix products.
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        args, kwargs = inputs.map(make.input)
        stack.enter_context(trace.watch([*weights.values(), *make.inputs]))
        stack.enter_context(attention_as(options.attention, trace))
        if setting.copy_layers:
            stack.enter_context(two_of_equal_layers(model, trace))
        step = _Step(model, options, trace)
        tensors = {f"model.{name}": tensor for name, tensor in (weights | buffers).items()}
        torch.func.functional_call(step, tensors, args, kwargs)
    return trace


class _Step(nn.Module):
    """Forward and backward in one call, as checkpointing in backward needs the same weights."""

    def __init__(self, model: nn.Module, options: PassOptions, trace: Trace):
        super().__init__()
        self.model, self.options, self.trace = model, options, trace

    def forward(self, *args: Any, **kwargs: Any) -> None:
        out = self.model(*args, **kwargs)
        loss = _loss(out, self.options, self.trace)
        if self.options.backward:
            self.trace.phase = BACKWARD
            loss.backward()


def _loss(out: Any, options: PassOptions, trace: Trace) -> torch.Tensor:
    if options.loss is not None:
        loss = options.loss(out)
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
            raise CostError("the loss must be one number (a tensor without axes)")
        return loss
    first = next(floating(out), None)
    if first is None:
        raise CostError("the model returned no floating tensor whose sum could be the loss")
    if options.backward and not first.requires_grad:
        raise NoBackwardError(
            "the first floating output does not depend on any trainable weight; "
            "give a loss, or backward=False"
        )
    trace.counting = False  # the sum stands in for a loss and is not the model's own work
    loss = first.sum()
    trace.counting = True
    return loss
