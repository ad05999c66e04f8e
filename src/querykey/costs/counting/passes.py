"""One traced pass over a model, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from querykey.costs.counting.checkpointing import layers_checkpointed
from querykey.costs.counting.counts import Formula
from querykey.costs.counting.data_dependent import DataDependentSizes
from querykey.costs.counting.depths import Depths
from querykey.costs.counting.equal_layers import two_of_equal_layers
from querykey.costs.counting.fused_attention import attention_as
from querykey.costs.counting.packed import no_packed_sequences
from querykey.costs.counting.phases import cache_in, read_prompt, read_token, tensors_in
from querykey.costs.counting.restoring import restored
from querykey.costs.counting.tensors import TensorMaker
from querykey.costs.counting.trace import BACKWARD, Trace
from querykey.costs.counting.traffic import Traffic
from querykey.costs.counting.whole_numbers import WholeNumbers
from querykey.costs.inputs import CostError, Inputs, NoBackwardError
from querykey.costs.memory.timeline import Timeline
from querykey.costs.private import run_backward, size_of
from querykey.targets import floating, quiet


@dataclass(frozen=True)
class PassOptions:
    """The user's options that hold for every pass."""

    backward: bool = True
    attention: str = "flash"
    loss: Callable[[Any], torch.Tensor] | None = None
    formulas: Mapping[str, Formula] = field(default_factory=dict)
    graph: bool = True  # whether autograd keeps what a backward pass needs
    dtype: torch.dtype | None = None  # another precision for weights and floating inputs
    phase: str = "train"  # one of PHASES
    checkpointing: bool = False  # whether numbered layers are run again in the backward pass


@dataclass(frozen=True)
class PassSetting:
    """Where one pass runs: on which device, under which mode of torch, at which sizes.

    Without a mode, real tensors run. With `data_dependent`, sizes that depend on values get names.
    With `copy_layers`, only two of equal layers run, and the others are taken to cost the same.
    `whole_numbers` are the files in which `int` is called on symbolic sizes.
    """

    sizes: Mapping[str, Any]
    device: str = "cpu"
    mode: Any = field(default_factory=nullcontext)
    data_dependent: DataDependentSizes | None = None
    copy_layers: bool = False
    whole_numbers: WholeNumbers = field(default_factory=WholeNumbers)


def run_pass(
    model: nn.Module,
    inputs: Inputs,
    options: PassOptions,
    setting: PassSetting,
    timeline: Timeline | None = None,
    depths: Depths | None = None,
    traffic: Traffic | None = None,
) -> Trace:
    """Run the model forward, and backward where the options say so, and return the trace.

    With a timeline, the pass is watched for what it takes and gives back of memory instead, with
    depths for how long its chains of operations are, and with traffic also for the bytes it moves.
    """
    own = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    dtype = options.dtype or own
    valueless = not isinstance(setting.mode, nullcontext)
    trace = Trace(model, frozenset(options.formulas), valueless, setting.data_dependent)
    trace.timeline, trace.depths, trace.traffic = timeline, depths, traffic
    make = TensorMaker(setting.mode, setting.device, setting.sizes, dtype)
    weights = {n: make.weight(p, options.dtype) for n, p in model.named_parameters()}
    buffers = {n: make.weight(b, options.dtype, copy=True) for n, b in model.named_buffers()}
    with ExitStack() as stack:
        stack.enter_context(restored(model))
        stack.enter_context(quiet())
        stack.enter_context(setting.mode)
        stack.enter_context(setting.whole_numbers.watched())
        stack.enter_context(torch.device(setting.device))
        stack.enter_context(torch.enable_grad() if options.graph else torch.no_grad())
        # oneDNN's fused layers (an LSTM in one operation) would hide their matrix products.
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        args, kwargs = inputs.map(make.input)
        stack.enter_context(trace.watch([*weights.values(), *make.inputs]))
        if timeline is not None:
            timeline.hold(weights.values(), "weights")
            timeline.hold(buffers.values(), "buffers")
            timeline.hold(make.inputs, "inputs")
        if valueless:
            stack.enter_context(no_packed_sequences(make.inputs))
        stack.enter_context(attention_as(options.attention, trace))
        if options.checkpointing:
            stack.enter_context(layers_checkpointed(model))
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
        if self.options.phase != "train":
            self._generate(args, kwargs)
            return
        out = self.model(*args, **kwargs)
        loss = _loss(out, self.options)
        if self.options.backward:
            self.trace.phase = BACKWARD
            self.trace.counting = False  # what stands in for a loss is not the model's own work
            gradient = torch.ones_like(loss)
            self.trace.counting = True
            run_backward(loss, gradient)

    def _generate(self, args: Any, kwargs: Any) -> None:
        """Count a prompt, or one new token after it; the state is that after the prompt."""
        prompt = self.options.phase == "prefill"
        self.trace.counting = prompt
        _, state = read_prompt(self.model, args, kwargs)
        self.trace.state = [_bytes(tensor) for tensor in tensors_in(cache_in(state))]
        self.trace.counting = True
        if not prompt:
            read_token(self.model, args, kwargs, state)


def _bytes(tensor: torch.Tensor) -> Any:
    """Return the bytes of a tensor's elements; a counter, which has no axes, is left out."""
    sizes = [size_of(size) for size in tensor.shape]
    return math.prod(sizes) * tensor.element_size() if sizes else 0


def _loss(out: Any, options: PassOptions) -> torch.Tensor:
    """Return the loss; without one the output, which then gets a gradient as any loss gives it."""
    if options.loss is not None:
        loss = options.loss(out)
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
            raise CostError("the loss must be one number (a tensor without axes)")
        return loss
    first = next(floating(out), None)
    if first is None:
        raise CostError("the model returned no floating tensor that a loss could be made of")
    if not options.backward:
        return first  # nothing uses a loss
    if not first.requires_grad:
        raise NoBackwardError(
            "the first floating output does not depend on any trainable weight; "
            "give a loss, or backward=False"
        )
    return first
