"""The work of `qk cost`: a target's name and options in, a report out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from querykey.costs.inputs import CostError, Inputs, Named, NoBackwardError, OutsideError, parse
from querykey.costs.measure import cost
from querykey.costs.measured_model import refuse_lazy
from querykey.costs.over import first_values
from querykey.costs.render import page
from querykey.costs.report import CostReport
from querykey.show import unwritable, write_file
from querykey.targets import Input, Target, outline, parse_fields, source_of

DIGITS = 18  # no axis of a tensor needs more


def cost_of_target(
    name: str,
    fields: Sequence[str] = (),
    inputs: Sequence[str] = (),
    at: str = "",
    attention: str = "flash",
    phase: str = "train",
    over: str = "",
) -> CostReport:
    """Build a target at its own size and return its report, at the sizes in `at` if there are any.

    `fields` set what its configuration or its factory leaves open, as in `hidden_size=8192`, and
    those that `over` names, separated by commas, stay free.
    """
    sizes = parse_sizes(at)
    if over:
        report = _over_fields(name, fields, inputs, parse_names(over), attention, phase)
        return report.at(**sizes) if sizes else report
    target = outline(name, parse_fields(fields))
    refuse_lazy(target.model)
    named = parse_inputs(inputs) if inputs else inputs_of(target)
    # A wrong name in `at` is refused by the report, which knows all sizes.
    free = Inputs.of(named).names()
    near = {size: value for size, value in sizes.items() if value >= 5 and size in free}
    try:
        report = _cost(target, named, attention, near, phase)
    except CostError:
        # The sizes may be too large for the model: the formula of small ones says how large.
        report = _cost(target, named, attention, {}, phase)
    report.settings["target"] = " ".join([target.name, *fields])
    report.settings["built"] = target.note
    try:
        return report.at(**sizes) if sizes else report
    except OutsideError as error:  # a formula that holds there was looked for above
        raise CostError(f"{error.fact}, and the model has none there") from None


def _over_fields(
    name: str,
    fields: Sequence[str],
    inputs: Sequence[str],
    over: list[str],
    attention: str,
    phase: str,
) -> CostReport:
    """Return the report in fields of the target's configuration, or arguments of its factory."""
    values = parse_fields(fields)
    for field in set(over) & {*values}:
        raise CostError(f"`{field}` is set and kept free too; leave out {field}={values[field]}")
    source = source_of(name, values)
    if inputs:
        named = parse_inputs(inputs)
    else:
        named = inputs_of(outline(name, {**values, **first_values(over, source)}))
    report = cost(source, named, attention=attention, phase=phase, over=over)
    report.settings["target"] = " ".join([name, *fields])
    return report


def _cost(
    target: Target, inputs: Any, attention: str, near: dict[str, int], phase: str
) -> CostReport:
    """Return the report with the backward pass, or without where there is none."""
    try:
        return cost(target.model, inputs, attention=attention, near=near, phase=phase)
    except NoBackwardError:
        report = cost(target.model, inputs, attention=attention, near=near, backward=False)
        report.notes.append("there is no backward pass: no trainable weight reaches the output")
        return report


def inputs_of(target: Target) -> dict[str, Named]:
    """Return what the target's forward requires, as shapes with named sizes."""
    if not target.inputs:
        raise CostError(f"`{target.name}`: {target.note} with --input NAME=KIND(AXIS, ...)")
    return {argument.name: _named(argument) for argument in target.inputs if argument.required}


def parse_inputs(texts: Sequence[str]) -> Any:
    """Return the inputs that every `--input` stands for: all with names, or all without."""
    pairs = [parse(text) for text in texts]
    names = [name for name, _ in pairs]
    if all(name is None for name in names):
        return tuple(named for _, named in pairs)
    if None in names:
        raise CostError("give every input a name, or none of them")
    return {str(name): named for name, named in pairs}


def parse_names(text: str) -> list[str]:
    """Return the names in a text such as `hidden_size,num_hidden_layers`."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise CostError(
                f"--over: `{name}` is no field; write FIELD,FIELD, as in hidden_size,vocab_size"
            )
    return names


def parse_sizes(text: str) -> dict[str, int]:
    """Return the sizes that a text such as `batch=8,seq=1024` stands for."""
    sizes = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, size = (word.strip() for word in part.partition("="))
        if not name.isidentifier() or not size.isdecimal():
            raise CostError(f"`{part}` is no size; write NAME=NUMBER, as in --at batch=8,seq=1024")
        if len(size) > DIGITS:
            raise CostError(f"--at: `{name}` has {len(size)} digits; write at most {DIGITS}")
        if name in sizes:
            raise CostError(f"--at gives `{name}` twice; write each size once")
        sizes[name] = int(size)
    return sizes


def refuse_page(file: str | Path) -> None:
    """Raise the error for a page that cannot be written, before the work is done."""
    reason = unwritable(Path(file)) if file else ""
    if reason:
        raise CostError(f"nothing can be written to `{file}`: {reason}")


def write_page(report: CostReport, target: str, file: str | Path) -> None:
    """Write the report as one HTML page."""
    write_file(file, page(report, target))


def _named(argument: Input) -> Named:
    if argument.kind in ("tokens", "mask"):
        low, high = (argument.low, argument.high) if argument.kind == "tokens" else (1, 2)
        return Named("tokens", argument.axes, low=low, high=high)
    return Named("images" if argument.kind == "image" else "array", argument.axes)
