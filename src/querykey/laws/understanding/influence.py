"""Which tokens an answer depends on, seen by changing one token at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from querykey.laws.blaming.recorder import ModuleCall, Recorder
from querykey.laws.run import PLAIN, Inputs, Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.understanding.outputs import tensors

LEAVES = (
    nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.GELU, nn.ReLU, nn.SiLU,
    nn.Identity, nn.Tanh, nn.Sigmoid,
)  # fmt: skip


class NothingSeenError(ValueError):
    """Answers are not finite, so that they do not show which answer depends on which token."""


def influence(runner: Runner, setting: Setting) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how strongly answer i depends on token j: one table for earlier, one for later j."""
    single, signature = replace(setting, batch=1), runner.signature
    inputs = runner.inputs(single)
    length = signature.length_of(inputs)
    many = signature.take_rows(inputs, [0] * (length + 1))
    other = signature.take_rows(_other_everywhere(runner, single, inputs), [0] * (length + 1))
    where = torch.zeros(length + 1, length, dtype=torch.bool)
    where[1:] = torch.eye(length, dtype=torch.bool)
    changed = signature.with_other(many, other, where)
    with torch.no_grad():
        try:
            answer = runner.answer(Run(changed, setting))
        except Exception:  # some models have room for few rows
            rows = [signature.take_rows(changed, [row]) for row in range(length + 1)]
            answer = torch.cat([runner.answer(Run(row, setting)) for row in rows])
    if not answer.isfinite().all():
        raise NothingSeenError("its answers are not finite, and do not show who looks where")
    gap = (answer[1:] - answer[:1]).flatten(2).abs().amax(-1) / answer[0].pow(2).mean().sqrt()
    gap = torch.where(gap > runner.facts.threshold, gap, 0.0).mT  # (answer i, token j)
    return gap.tril(-1), gap.triu(1)


def _other_everywhere(runner: Runner, setting: Setting, inputs: Inputs) -> Inputs:
    """Return other inputs, in which no id is by chance that of the same place in `inputs`."""
    other = dict(runner.inputs(setting, seed=1))
    for entry in runner.signature.inputs:
        span = entry.high - entry.low
        if entry.kind == "tokens" and span > 1:
            value, drawn = inputs[entry.name], other[entry.name]
            next_id = (value - entry.low + 1) % span + entry.low
            other[entry.name] = torch.where(drawn == value, next_id, drawn)
    return other


def causal_parts(runner: Runner) -> tuple[int, int]:
    """Return how many innermost token-mixing modules are causal when called alone, and not.

    A model of features whose convolutions look back and whose attention is full is no decoder
    because of them: they do not count.
    """
    setting = PLAIN
    recorder = Recorder(keep_arguments=True)
    with torch.no_grad():
        runner.answer(Run(runner.inputs(setting), setting), recorder)
    verdicts: dict[str, str] = {}
    for call in recorder.done:
        if isinstance(call.module, LEAVES) or call.path in verdicts or not call.path:
            continue
        if any(path.startswith(f"{call.path}.") for path in verdicts):
            continue  # a part of it mixes already
        verdict = _alone(runner, call, setting)
        if verdict:
            verdicts[call.path] = verdict
    model = runner.copies.of(setting)
    causal, open_ = (
        [model.get_submodule(path) for path, verdict in verdicts.items() if verdict == wanted]
        for wanted in ("causal", "open")
    )
    apart = all(map(_convolves, causal)) and not any(map(_convolves, open_))
    if open_ and apart and runner.signature.main.kind == "features":
        return 0, len(open_)
    return len(causal), len(open_)


def _convolves(module: nn.Module) -> bool:
    """Return whether a module mixes tokens by a convolution or a recurrence."""
    mixes = (nn.Conv1d, nn.RNNBase)
    return any(
        isinstance(m, mixes) and getattr(m, "kernel_size", 0) != (1,) for m in module.modules()
    )


def _alone(runner: Runner, call: ModuleCall, setting: Setting) -> str:
    """Call one module again with its middle token changed; return causal, open, or nothing."""
    args, kwargs = call.arguments
    batch, length = setting.batch, runner.length(setting)
    values = (*args, *kwargs.values())
    value = next((v for v in values if _is_sequence(v, batch, length)), None)
    if value is None:
        return ""
    middle = length // 2
    changed = _with_noise(value, batch, length, middle)
    model = runner.copies.of(setting)
    try:
        with torch.no_grad(), runner.copies.surroundings(model, setting):
            answers = []
            for new in (value, changed):
                new_args = [new if arg is value else arg for arg in args]
                new_kwargs = {k: new if v is value else v for k, v in kwargs.items()}
                output = call.module(*new_args, **new_kwargs)
                first = next(t for _, t in tensors(output) if _is_sequence(t, batch, length))
                answers.append(first.movedim(_axes(first, batch, length), (0, 1)))
    except Exception:
        return ""
    before, after = answers
    gap = (before - after).flatten(2).abs().amax((0, 2)) / before.pow(2).mean().sqrt()
    noticed = gap > runner.facts.threshold
    if noticed[:middle].any():
        return "open"
    return "causal" if noticed[middle + 1 :].any() else ""


def _with_noise(value: torch.Tensor, batch: int, length: int, position: int) -> torch.Tensor:
    """Return a sequence of vectors in which one position got noise of the values' own size."""
    changed = value.clone()
    view = changed.movedim(_axes(value, batch, length), (0, 1))
    noise = torch.randn(view[:, position].shape, generator=torch.Generator().manual_seed(3))
    view[:, position] += noise.to(view) * view.std()
    return changed


def _is_sequence(value: Any, batch: int, length: int) -> bool:
    """Return whether a value is a floating tensor that begins with batch and positions."""
    return (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.dim() >= 3
        and {batch, length} <= set(value.shape[:2])
    )


def _axes(value: torch.Tensor, batch: int, length: int) -> tuple[int, int]:
    """Return which axes are batch and positions."""
    return (0, 1) if value.shape[0] == batch and value.shape[1] == length else (1, 0)
