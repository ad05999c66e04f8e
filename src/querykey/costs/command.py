"""The work of `qk cost`: words in, a report out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from querykey.costs.inputs import CostError, Named, NoBackwardError, OutsideError, parse
from querykey.costs.measure import cost
from querykey.costs.measured_model import refuse_lazy
from querykey.costs.report import Report
from querykey.show import write_file
from querykey.targets import Target, build

DIGITS = 18  # of a size: no axis of a tensor is longer


def cost_of_target(
    name: str, inputs: Sequence[str] = (), at: str = "", attention: str = "flash"
) -> Report:
    """Build a target and return its report, at the sizes in `at` where there are any."""
    sizes = parse_sizes(at)
    target = build(name)
    refuse_lazy(target.model)
    given = parse_inputs(inputs) if inputs else inputs_of(target)
    near = {size: value for size, value in sizes.items() if value >= 5}
    try:
        report = _cost(target, given, attention, _present(near, given))
    except CostError:
        # Those sizes may be too long for the model: the formula for small ones says how long.
        report = _cost(target, given, attention, {})
    try:
        return report.at(**sizes) if sizes else report
    except OutsideError as error:  # one that holds there was looked for above
        raise CostError(f"{error.fact}, and the model has none there") from None


def _cost(target: Target, given: Any, attention: str, near: dict[str, int]) -> Report:
    """With the backward pass, where there is one."""
    try:
        return cost(target.model, given, attention=attention, near=near)
    except NoBackwardError:
        report = cost(target.model, given, attention=attention, near=near, backward=False)
        report.notes.append("there is no backward pass: no trainable weight reaches the output")
        return report


def inputs_of(target: Target) -> dict[str, Named]:
    """What the target's forward requires, as shapes with named sizes."""
    if not target.inputs:
        raise CostError(f"`{target.name}`: {target.note} with --input NAME=KIND(AXIS, ...)")
    return {each.name: _named(each) for each in target.inputs if each.required}


def parse_inputs(words: Sequence[str]) -> Any:
    """Read every `--input`: all with names, or all without."""
    found = [parse(each) for each in words]
    names = [name for name, _ in found]
    if all(name is None for name in names):
        return tuple(named for _, named in found)
    if None in names:
        raise CostError("give every input a name, or none of them")
    return {str(name): named for name, named in found}


def parse_sizes(words: str) -> dict[str, int]:
    """Read `batch=8,seq=1024`."""
    sizes = {}
    for word in filter(None, (each.strip() for each in words.split(","))):
        name, _, size = (part.strip() for part in word.partition("="))
        if not name.isidentifier() or not size.isdecimal():
            raise CostError(f"`{word}` is no size; write NAME=NUMBER, as in --at batch=8,seq=1024")
        if len(size) > DIGITS:
            raise CostError(f"--at: `{name}` has {len(size)} digits; write at most {DIGITS}")
        if name in sizes:
            raise CostError(f"--at gives `{name}` twice; write each size once")
        sizes[name] = int(size)
    return sizes


def write_page(report: Report, target: str, file: str) -> None:
    """Write the report as one HTML page."""
    from querykey.costs.render import page

    write_file(file, page(report, target))


def _named(each: Any) -> Named:
    if each.kind in ("tokens", "mask"):
        low, high = (each.low, each.high) if each.kind == "tokens" else (1, 2)
        return Named("tokens", each.axes, low=low, high=high)
    return Named("images" if each.kind == "image" else "array", each.axes)


def _present(near: dict[str, int], given: Any) -> dict[str, int]:
    """The sizes that are free; a wrong name is told by the report, which knows them all."""
    from querykey.costs.inputs import Inputs

    names = Inputs.of(given).names()
    return {name: size for name, size in near.items() if name in names}
