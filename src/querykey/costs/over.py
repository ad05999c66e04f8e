"""Fields of a configuration, or arguments of a builder, kept as sizes: which values to try.

Heads of keys divide heads, and heads divide the width. The values that are tried form such a chain,
so that each of them goes with every other. They may be large, because nothing is computed.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import nn

from querykey.costs.inputs import CostError
from querykey.targets import TargetError, field_of, quiet, rebuilt
from querykey.words import last_line, suggest

KEY_HEADS = re.compile(r".*(key_value|kv).*heads?|kv_n_heads|multi_query_group_num")
HEADS = re.compile(r".*heads?")
WIDTH = re.compile(r"hidden_size|d_model|n_embd|embed_dim|dim|width|emb_dim")
HEAD_WIDTH = re.compile(r".*(head_dim|d_kv|d_head|dim_head|kv_channels|head_size)")
LAYERS = re.compile(r".*layers?|depth|n_layer|.*blocks")
TABLES = re.compile(r".*vocab.*|.*positions?(_embeddings)?|n_positions|n_ctx|vocabulary|length")
NUMBERS_OF_HEADS = tuple(12 * n for n in (1, 2, 3, 4, 6, 12))  # heads of keys divide the first
CHAIN = 2 * math.lcm(*NUMBERS_OF_HEADS)  # few features per head: kernels branch where they are many
SMALL = 8  # a field of at most so many, such as a number of experts, is tried at small numbers


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
        fields = {size_name(field): field for field in over}
        return _with_arguments(
            lambda **sizes: rebuilt(source, {fields[n]: size for n, size in sizes.items()}), fields
        )
    names = [*inspect.signature(source).parameters]
    for name in over:
        if name not in names:
            raise CostError(f"the builder has no argument `{name}`{suggest(name, names)}")
    return _with_arguments(source, list(dict.fromkeys([*_required(source), *over])))


def size_name(field: str) -> str:
    """Return the name of a field in formulas: `text_config.hidden_size` gets an underscore."""
    return field.replace(".", "_")


def values_over(over: Sequence[str], source: Any) -> Iterator[dict[str, list[int]]]:
    """Yield the values to try for every field, such that each goes with all of the others.

    Numbers in a chain come first, then those that divide each other less, and multiples of the
    defaults, which fit what the configuration leaves fixed.
    """
    names = list(dict.fromkeys([*_required(source), *over]))
    yield {size_name(name): _values(name, names, source) for name in names}
    yield {size_name(name): _values(name, names, source, multiples=True) for name in names}


def first_values(over: Sequence[str], source: Any) -> dict[str, int]:
    """Return a value for every argument that a builder requires, so that it can be built."""
    values = next(values_over(over, source)) if _required(source) else {}
    return {name: values[name][0] for name in _required(source)}


def own_values(source: Any, over: Sequence[str]) -> dict[str, int] | None:
    """Return what the fields are where nobody sets them, None where one has no default."""
    own = {size_name(name): _default(source, name) for name in [*_required(source), *over]}
    return None if None in own.values() else {n: v for n, v in own.items() if v is not None}


def _required(source: Any) -> list[str]:
    """Return the arguments that a builder requires; a model's configuration requires none."""
    if isinstance(source, nn.Module):
        return []
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(source).parameters.values()
    empty = inspect.Parameter.empty
    return [p.name for p in parameters if p.default is empty and p.kind in kinds]


def _values(field: str, over: Sequence[str], source: Any, multiples: bool = False) -> list[int]:
    default = _default(source, field)
    part, _, name = field.rpartition(".")
    over = [n.rpartition(".")[2] for n in over if n.rpartition(".")[0] == part]
    widths = any(WIDTH.fullmatch(n) for n in over)
    heads = any(HEADS.fullmatch(n) for n in over)
    if LAYERS.fullmatch(name):
        return [*range(2, 9)]
    if KEY_HEADS.fullmatch(name) and heads:
        return [1, 2, 3, 4, 6, 12]
    if HEADS.fullmatch(name):
        if widths or default is None:
            return [*NUMBERS_OF_HEADS]
        return [n for n in range(1, 9 * default) if not default % n or not n % default][:8]
    if WIDTH.fullmatch(name) and heads:
        return [CHAIN * n for n in range(1, 10)]
    if TABLES.fullmatch(name):
        return [(default or 1000) + 7 * n for n in range(7)]
    if multiples or WIDTH.fullmatch(name):
        return [(default or CHAIN) * n for n in range(1, 9)]
    if default is not None and default <= SMALL:
        return [*range(max(default, 1), max(default, 1) + 8)]
    step = 8 if HEAD_WIDTH.fullmatch(name) or (default or 8) % 8 == 0 else 1
    return [step * n for n in range(3, 11)]


def _default(source: Any, name: str) -> int | None:
    if isinstance(source, nn.Module):
        value = field_of(source, name)
    else:
        parameter = inspect.signature(source).parameters.get(name)
        value = None if parameter is None else parameter.default
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _with_arguments(make: Callable[..., nn.Module], names: Iterable[str]) -> Callable[..., Any]:
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
