"""Formulas over the fields of a configuration: which values to try, and what divides what.

Heads of keys divide heads, and heads divide the width. The values that are tried form such a chain,
so that each of them goes with every other. They may be large, because nothing is computed.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
from torch import nn

from querykey.costs.inputs import CostError
from querykey.targets import TargetError, field_of, quiet, rebuilt
from querykey.words import last_line, suggest

KEY_HEADS = re.compile(r".*(key_value|kv).*heads?|kv_n_heads|multi_query_group_num")
HEADS = re.compile(r".*heads?")
WIDTH = re.compile(r"hidden_size|d_model|n_embd|embed_dim|dim|width|emb_dim")
HEAD_WIDTH = re.compile(r".*(head_dim|d_kv|d_head|dim_head|kv_channels|head_size)")
LAYERS = re.compile(r".*layers?|depth|n_layer")
TABLES = re.compile(r".*vocab.*|.*positions?(_embeddings)?|n_positions|n_ctx|vocabulary|length")
UNIT = 12  # heads are multiples of it, and heads of keys divide it
WIDE = 1024  # more features per head than any kernel treats apart
NUMBERS_OF_HEADS = tuple(UNIT * n for n in (1, 2, 3, 4, 6, 12))
CHAIN = 2 * math.lcm(*NUMBERS_OF_HEADS)  # few features per head: kernels branch where they are many


def builder_over(
    source: nn.Module | Callable[..., nn.Module], over: Sequence[str]
) -> Callable[..., nn.Module]:
    """Return a builder whose sizes are the fields in `over`, of a builder or a model's config."""
    if len(set(over)) != len(over) or not over:
        raise CostError("over names the fields that stay free, each once")
    if isinstance(source, nn.Module):
        for name in over:
            value = field_of(source, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise CostError(f"`{name}` is no whole number ({value!r}), so no size")
        return _with_arguments(lambda **sizes: rebuilt(source, sizes), over)
    names = [*inspect.signature(source).parameters]
    for name in over:
        if name not in names:
            raise CostError(f"the builder has no argument `{name}`{suggest(name, names)}")
    parameters = inspect.signature(source).parameters.values()
    required = [p.name for p in parameters if p.default is inspect.Parameter.empty]
    return _with_arguments(source, list(dict.fromkeys([*required, *over])))


def values_over(over: Sequence[str], source: Any) -> dict[str, list[int]]:
    """Return for every field the values to try, such that each goes with all of the others."""
    return {name: _values(name, over, source) for name in over}


def relations(over: Sequence[str], holds: Callable[[Mapping[str, int]], bool]) -> list[Any]:
    """Return what must divide what; `holds` says whether a choice of all fields has the formula."""
    keys = next((name for name in over if KEY_HEADS.fullmatch(name)), None)
    heads = next((n for n in over if HEADS.fullmatch(n) and not KEY_HEADS.fullmatch(n)), None)
    width = next((name for name in over if WIDTH.fullmatch(name)), None)
    symbol = {name: sympy.Symbol(name) for name in over}
    found: list[Any] = []
    if keys and heads:
        found.append(sympy.Eq(symbol[heads] % symbol[keys], 0))
    if width and heads:
        odd = {heads: UNIT, width: UNIT * 13, **({keys: 2} if keys else {})}
        times = 1 if holds(odd) else 2  # rotations need an even number of features per head
        found.append(sympy.Eq(symbol[width] % (times * symbol[heads]), 0))
        most = _most_per_head(lambda per_head: holds({**odd, width: UNIT * per_head}))
        if most is not None:
            found.append(symbol[width] <= most * symbol[heads])
    return found


def _most_per_head(holds: Callable[[int], bool]) -> int | None:
    """Return the most features per head for which the formula holds, None where it always does."""
    low, high = CHAIN // UNIT // 2, WIDE // 2
    if holds(2 * high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(2 * middle) else (low, middle)
    return 2 * low


def _values(name: str, over: Sequence[str], source: Any) -> list[int]:
    default = _default(source, name)
    heads = any(HEADS.fullmatch(n) for n in over)
    if KEY_HEADS.fullmatch(name):
        return [1, 2, 3, 4, 6, 12]
    if HEADS.fullmatch(name):
        if any(WIDTH.fullmatch(n) for n in over) or default is None:
            return [*NUMBERS_OF_HEADS]
        return [n for n in range(1, 9 * default) if not default % n or not n % default][:8]
    if WIDTH.fullmatch(name) and heads:
        return [CHAIN * n for n in range(1, 10)]
    if WIDTH.fullmatch(name):
        return [(default or CHAIN) * n for n in range(1, 8)]
    if LAYERS.fullmatch(name):
        return [*range(2, 9)]
    if TABLES.fullmatch(name):
        return [(default or 1000) + 7 * n for n in range(7)]
    step = 8 if HEAD_WIDTH.fullmatch(name) or (default or 8) % 8 == 0 else 1
    return [step * n for n in range(3, 11)]


def _default(source: Any, name: str) -> int | None:
    if isinstance(source, nn.Module):
        value = field_of(source, name)
    else:
        parameter = inspect.signature(source).parameters.get(name)
        value = None if parameter is None else parameter.default
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _with_arguments(make: Callable[..., nn.Module], names: Sequence[str]) -> Callable[..., Any]:
    def build(**sizes: int) -> nn.Module:
        try:
            with quiet():
                return make(**sizes)
        except TargetError as error:
            raise ValueError(last_line(error, 300)) from error

    kind = inspect.Parameter.KEYWORD_ONLY
    signature = inspect.Signature([inspect.Parameter(name, kind) for name in names])
    vars(build)["__signature__"] = signature
    return build
