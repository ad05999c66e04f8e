"""What is saved and loaded into a fresh model gives the same answers."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from querykey.laws.blaming.guilty_module import GuiltyModule, guilty_part
from querykey.laws.blaming.pairwise import first_difference
from querykey.laws.blaming.recorder import Recorder
from querykey.laws.catalogue.sweeps import once
from querykey.laws.law import Law, RefusalError
from querykey.laws.private import buffers_of, is_pretrained
from querykey.laws.run import PLAIN, Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Evidence, Outcome, deviation
from querykey.laws.understanding.float64 import duplicate, randomise
from querykey.laws.understanding.reachable import attributes
from querykey.targets import build
from querykey.words import last_line

VALUES = (bool, int, float, str, type(None))
OTHER_SEED = 101


def reload(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Train a little, save, load into a fresh model, and compare the answers."""
    runner.copies.reset(setting)
    used = duplicate(runner.copies.of(setting), wide=False)
    if not _forgets(runner, duplicate(used, wide=False), setting):
        raise RefusalError("its answers depend on earlier calls, which the law determinism reports")
    fresh, how = fresh_model(runner, setting)
    _train(runner, used)
    try:
        fresh.load_state_dict(used.state_dict())
    except Exception as error:
        note = f"its own state does not load into a fresh model: {last_line(error)[:160]}"
        yield Outcome(float("inf"), note, setting, advice=True)  # an exception is loud
        return
    run, recorders = Run(runner.inputs(setting), setting), (Recorder(), Recorder())
    first, second = (
        _answer(runner, model, run, recorder)
        for model, recorder in zip((used, fresh), recorders, strict=True)
    )
    far = deviation(first, second)[0]
    if not far > runner.facts.threshold:
        yield Outcome(far, setting=setting)
        return
    missing = unsaved(used, fresh)
    guilty = first_difference(*recorders, runner.facts.threshold)
    note = f"answers moved by {far:.2g} when the state was loaded into {how}"
    if missing:
        owner, name = missing[0]
        guilty = guilty_part(used, owner)
        note += f": `{f'{owner}.{name}'.lstrip('.')}` differs and is not in the state"
    yield Outcome(far, note, setting, evidence=Evidence(module=guilty or _root(used)))


def _root(model: nn.Module) -> GuiltyModule:
    return guilty_part(model, "")


def _answer(runner: Runner, model: nn.Module, run: Run, recorder: Recorder) -> torch.Tensor:
    """Return the answer of a model as it is now, whatever calls have left in it."""
    function = runner.subject.on(model)
    with torch.no_grad(), runner.copies.surroundings(model, run.setting), recorder.watching(model):
        output = runner.copies.bind(function, runner.copies.on_device(run.inputs))
    return runner.take(output, run.inputs)


def _forgets(runner: Runner, model: nn.Module, setting: Setting) -> bool:
    """Return whether calls in evaluation leave nothing behind that the next one would see."""
    runs = [Run(runner.inputs(setting, seed), setting) for seed in (0, 5, 0)]
    first, _, again = (_answer(runner, model, run, Recorder()) for run in runs)
    return deviation(first, again)[0] <= runner.facts.threshold


def _train(runner: Runner, model: nn.Module) -> None:
    """Call a copy twice in training mode, so that it keeps what training keeps.

    A model whose calls in evaluation leave something behind is not used: that is no training.
    """
    kept = copy.deepcopy(model)
    model.train()
    try:
        for seed in (3, 4):
            _answer(runner, model, Run(runner.inputs(PLAIN, seed)), Recorder())
        model.eval()
        run = Run(runner.inputs(PLAIN))
        answers = [_answer(runner, model, run, Recorder()) for _ in range(2)]
        fine = deviation(*answers)[0] <= runner.facts.threshold
    except Exception:
        fine = False
    if not fine:
        model.__dict__.update(kept.__dict__)
    model.eval()


def fresh_model(runner: Runner, setting: Setting) -> tuple[nn.Module, str]:
    """Return a model that was built anew with other weights, and how; else a copy as it began."""
    made, how = made_anew(runner)
    if made is None:
        model = duplicate(runner.copies.of(setting), wide=False)
    else:
        model = duplicate(made, runner.copies.recipe.wide)
    randomise(model, OTHER_SEED)
    return model.to(runner.copies.device), how


def made_anew(runner: Runner) -> tuple[nn.Module | None, str]:
    """Return a model that was built as this one was, and how; None where nothing builds one."""
    own = runner.copies.model
    for build_it, how in _ways(runner):
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(OTHER_SEED)
                candidate = build_it()
        except Exception:
            continue
        if isinstance(candidate, nn.Module) and _is_like(candidate, own):
            return candidate, how
    return None, "a copy as it was before training"


def _ways(runner: Runner) -> Iterator[tuple[Any, str]]:
    """Yield ways to build the model anew: its target, its configuration, its constructor."""
    own: Any = runner.copies.model
    if is_pretrained(own):
        yield lambda: type(own)(copy.deepcopy(own.config)), "one made of its configuration"
        return
    name = runner.subject.name
    if ":" in name:
        yield lambda: build(name, OTHER_SEED).model, "one that its factory made"
    yield lambda: type(own)(**_constructed_with(own)), f"a new {type(own).__name__}"


def _constructed_with(model: nn.Module) -> dict[str, Any]:
    """Return arguments of a model's constructor, read from attributes of the same names."""
    held, passed = attributes(model), {}
    for name, parameter in inspect.signature(type(model)).parameters.items():
        if name in held and not isinstance(held[name], torch.Tensor | nn.Module):
            passed[name] = held[name]
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            raise RefusalError(f"its constructor wants {name}")
    return passed


def _is_like(model: nn.Module, own: nn.Module) -> bool:
    """Return whether a new model has the old one's parts, shapes and plain attributes."""
    first, second = own.state_dict(), model.state_dict()
    if {n: t.shape for n, t in first.items()} != {n: t.shape for n, t in second.items()}:
        return False
    parts = dict(model.named_modules())
    for path, module in own.named_modules():
        other = parts.get(path)
        if other is None or type(other) is not type(module):
            return False
        held = attributes(other)
        for name, value in attributes(module).items():
            if isinstance(value, VALUES) and (name not in held or held[name] != value):
                return False
    return True


def unsaved(used: nn.Module, fresh: nn.Module) -> list[tuple[str, str]]:
    """Return (module, name) of tensors and numbers that differ and that no state dict holds."""
    saved = set(used.state_dict())
    parts, names = dict(fresh.named_modules()), []
    for path, module in used.named_modules():
        other = parts.get(path)
        if other is None:
            continue
        held = {**attributes(other), **buffers_of(other)}
        for name, value in {**attributes(module), **buffers_of(module)}.items():
            if f"{path}.{name}".lstrip(".") not in saved and not _same(value, held.get(name)):
                names.append((path, name))
    return names


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        fits = isinstance(second, torch.Tensor) and first.shape == second.shape
        return fits and torch.equal(first, second)
    return not isinstance(first, VALUES) or first == second


def keeps_something(runner: Runner) -> str:
    """Return why the law does not apply to a model without a state."""
    return "" if runner.copies.model.state_dict() else "it has nothing to save"


LAWS = (
    Law(
        "paths.reload",
        says="A state that is saved and loaded into a fresh model gives the same answers.",
        why="Otherwise what was trained is not what is served: a table was drawn anew.",
        how="A copy is called in training mode, and its state dict loaded into a model made by the "
        "factory, the configuration or the constructor, with other weights.",
        trials=reload,
        applies=keeps_something,
        sweep=once,
    ),
)
