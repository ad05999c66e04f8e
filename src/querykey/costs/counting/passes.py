"""One pass over a model, forward and backward, without values; what it counted, as sums."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import nn

from querykey.costs import private
from querykey.costs.counting import operations as formulas
from querykey.costs.counting.data_dependent import Picks
from querykey.costs.counting.equal_layers import repeated
from querykey.costs.counting.fused_attention import attention_as
from querykey.costs.counting.operations import FUSED_BACKWARD, Call, Shape
from querykey.costs.counting.restoring import untouched
from querykey.costs.counting.trace import BACKWARD, FORWARD, Tally
from querykey.costs.inputs import CostError, Inputs, Named, NoBackwardError
from querykey.targets import floating, quiet

Sum = dict[Any, Any]  # a monomial (a sympy expression, or 1) to its coefficient
Formula = Callable[[list[Shape], list[Shape]], Any]

# What a pass counts, per module and without its children.
METRICS = (
    "forward", "backward", "pointwise", "pointwise_backward", "hidden", "recomputed", "saved",
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """What is asked of every pass."""

    backward: bool = True
    attention: str = "flash"
    loss: Callable[[Any], torch.Tensor] | None = None
    formulas: Mapping[str, Formula] = field(default_factory=dict)


@dataclass
class Counts:
    """Costs by (module, metric), parameters by module, and what has no formula."""

    own: dict[tuple[str, str], Sum]
    params: dict[str, int]
    unknown: dict[str, dict[str, int]]  # operation: module: calls

    def at(self, sizes: Mapping[str, int]) -> dict[tuple[str, str], Any]:
        """Every count as a number."""
        values = {sympy.Symbol(name): size for name, size in sizes.items()}
        known: dict[Any, Any] = {}

        def value(monomial: Any) -> Any:
            if monomial not in known:
                known[monomial] = sympy.sympify(monomial).xreplace(
                    {s: sympy.Integer(v) for s, v in values.items()}
                )
            return known[monomial]

        found = {k: sum(c * value(m) for m, c in each.items()) for k, each in self.own.items()}
        return {k: v for k, v in found.items() if v != 0}


def run_pass(
    model: nn.Module,
    inputs: Inputs,
    sizes: Mapping[str, Any],
    mode: Any,
    device: str,
    how: Options,
    picks: Picks | None = None,
    repeats: bool = False,
) -> Tally:
    """Run forward (and backward) on tensors that the mode makes, and return what was seen.

    With `repeats`, equal layers run twice, and the rest is taken to cost the same.
    """
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    tally = Tally(model, frozenset(how.formulas), not isinstance(mode, nullcontext), picks)
    make = _maker(mode, device, sizes, dtype)
    weights = {name: make.weight(p) for name, p in model.named_parameters()}
    buffers = {name: make.weight(b, copy=True) for name, b in model.named_buffers()}
    with ExitStack() as stack:
        stack.enter_context(untouched(model))
        stack.enter_context(quiet())
        stack.enter_context(mode or nullcontext())
        stack.enter_context(torch.device(device))
        stack.enter_context(torch.enable_grad())
        # Its fused layers (an LSTM in one operation) would hide the products they are made of.
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        args, kwargs = inputs.map(make.tensor)
        stack.enter_context(tally.watch([*weights.values(), *make.made]))
        stack.enter_context(attention_as(how.attention, tally))
        stack.enter_context(repeated(model, tally) if repeats else nullcontext())
        step = _Step(model, how, tally)
        swapped = {f"model.{name}": each for name, each in (weights | buffers).items()}
        torch.func.functional_call(step, swapped, args, kwargs)
    return tally


class _Step(nn.Module):
    """Forward and backward in one call: what backward computes again needs the same weights."""

    def __init__(self, model: nn.Module, how: Options, tally: Tally):
        super().__init__()
        self.model, self.how, self.tally = model, how, tally

    def forward(self, *args: Any, **kwargs: Any) -> None:
        out = self.model(*args, **kwargs)
        loss = _loss(out, self.how, self.tally)
        if self.how.backward:
            self.tally.phase = BACKWARD
            loss.backward()


def counts_of(
    tally: Tally, model: nn.Module, how: Options, plain: Callable[[Any], Any] = lambda e: e
) -> Counts:
    """The calls of a pass as sums in the user's names."""
    own: dict[tuple[str, str], Sum] = {}
    known: dict[tuple[Call, str], Sum] = {}

    def add(path: str, metric: str, call: Call, cost: Callable[[Call], Any], times: int) -> None:
        if (call, metric) not in known:
            known[call, metric] = as_sum(plain(cost(call)))
        if known[call, metric]:
            into = own.setdefault((path, metric), {})
            for monomial, factor in known[call, metric].items():
                into[monomial] = into.get(monomial, 0) + factor * times

    for (call, path, phase), times in tally.calls.items():
        products, pointwise = _costs(call, how.formulas)
        add(path, phase, call, products, times)
        add(path, "pointwise" if phase == FORWARD else "pointwise_backward", call, pointwise, times)
        if call.op == FUSED_BACKWARD:
            add(path, "recomputed", call, _recomputed, times)
    for (call, path), times in tally.hidden.items():
        add(path, "hidden", call, _hidden, times)
    for path, size in tally.saved:
        into = own.setdefault((path, "saved"), {})
        for monomial, factor in as_sum(plain(size)).items():
            into[monomial] = into.get(monomial, 0) + factor
    unknown: dict[str, dict[str, int]] = {}
    for (op, path), times in tally.unknown.items():
        unknown.setdefault(op, {})[path] = times
    return Counts(own, parameters(model), unknown)


def as_sum(expression: Any) -> Sum:
    """An expression as monomials with their coefficients."""
    if isinstance(expression, int):
        return {sympy.S.One: expression} if expression else {}
    expanded = sympy.expand(expression)
    return {m: c for m, c in expanded.as_coefficients_dict().items() if c != 0}


def parameters(model: nn.Module) -> dict[str, int]:
    """Parameters of every module and its children, a shared one once."""
    return {path: sum(p.numel() for p in m.parameters()) for path, m in model.named_modules()}


def _costs(call: Call, given: Mapping[str, Formula]) -> tuple[Any, Any]:
    if call.op not in given:
        return formulas.products, formulas.pointwise

    def by_user(call: Call) -> Any:
        shapes = [each for each in call.args if isinstance(each, Shape)]
        return given[call.op](shapes, list(call.outs))

    return by_user, lambda call: 0


def _recomputed(call: Call) -> Any:
    return 2 * formulas.scores(call.args[0], call.args[1]) * call.args[0][-1]


def _hidden(call: Call) -> Any:
    """FLOPs spent on pairs that a causal flag hides: those above the diagonal."""
    q, k, v = call.args
    queries, keys = q[-2], k[-2]
    if queries == keys:
        visible = sympy.sympify(queries) * (queries + 1) / 2
    else:
        short = sympy.Min(queries, keys)
        visible = short * (short + 1) / 2 + (queries - short) * keys
    hidden = (queries * keys - visible) * formulas.count(Shape(q[:-2]))
    found = 2 * hidden * (q[-1] + v[-1])
    return int(found) if found.is_Integer else found


def _loss(out: Any, how: Options, tally: Tally) -> torch.Tensor:
    if how.loss is not None:
        loss = how.loss(out)
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
            raise CostError("the loss must be one number (a tensor without axes)")
        return loss
    first = next(floating(out), None)
    if first is None:
        raise CostError("the model returned no floating tensor whose sum could be the loss")
    if how.backward and not first.requires_grad:
        raise NoBackwardError(
            "the first floating output does not depend on any trainable weight; "
            "give a loss, or backward=False"
        )
    tally.counting = False  # the stand-in for a loss is not the model's
    loss = first.sum()
    tally.counting = True
    return loss


class _Maker:
    """Tensors without values (or, without a mode, with made-up ones)."""

    def __init__(self, mode: Any, device: str, sizes: Mapping[str, Any], dtype: torch.dtype):
        self.mode, self.device, self.sizes, self.dtype = mode, device, sizes, dtype
        self.made: list[torch.Tensor] = []

    def tensor(self, given: Any) -> torch.Tensor:
        if not isinstance(given, Named):
            made = self.given(given)
            made.requires_grad_(given.requires_grad)
        elif given.kind == "tokens":
            shape = given.shape(dict(self.sizes))
            made = self._ids(shape, given.low, given.high or 2)
        else:
            shape = given.shape(dict(self.sizes))
            dtype = given.dtype or self.dtype
            made = torch.empty(shape, dtype=dtype) if self.mode else torch.randn(shape, dtype=dtype)
            made.requires_grad_(given.grad)
        self.made.append(made)
        return made

    def _ids(self, shape: list[Any], low: int, high: int) -> torch.Tensor:
        if self.mode:
            return torch.empty(shape, dtype=torch.long)
        return torch.randint(low, high, shape)

    def weight(self, tensor: torch.Tensor, copy: bool = False) -> torch.Tensor:
        if self.mode:
            return private.fake_weight(self.mode, tensor, self.device)
        made = tensor.detach().clone() if copy else tensor.detach()
        return made.requires_grad_(tensor.requires_grad)

    def given(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.mode:
            return private.fake(self.mode, tensor.detach(), self.device)
        return tensor.detach().clone()


def _maker(mode: Any, device: str, sizes: Mapping[str, Any], dtype: torch.dtype) -> _Maker:
    return _Maker(None if isinstance(mode, nullcontext) else mode, device, sizes, dtype)


@contextmanager
def random_state(seed: int) -> Iterator[None]:
    """Draw from this seed, and leave torch's random numbers as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
