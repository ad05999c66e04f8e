"""What a model's own source says: that it is causal, and that the order of tokens matters."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator

import torch
from torch import nn

from querykey.laws.private import AVERAGE_POOLS, CONVOLUTIONS, buffers_of, names_of_parts
from querykey.laws.understanding.cache_protocol import CERTAIN

CAUSAL_NAMES = re.compile(r"GPT|Causal|Autoregress|DecoderOnly|LanguageModel")
TRIANGLES = {"tril", "triu", "generate_square_subsequent_mask"}
POSITION_NAMES = re.compile(
    r"pos|rope|rotary|alibi|relative|freq|wpe|time|decay|conv|shift|window|order", re.I
)
POSITION_CODE = re.compile(
    r"arange|linspace|cumsum|roll\(|\.sin\(|\.cos\(|conv|\bpos|flip|tril|triu|shift|unfold|enumerate"
)
ORDERED = (nn.RNNBase, nn.RNNCellBase, CONVOLUTIONS, AVERAGE_POOLS)


def sign_of_causality(model: nn.Module, always: bool = True) -> str:
    """Return what in the user's own classes suggests that the model is causal, or nothing.

    Their names, arguments and buffers tell, and the masks that their code builds: always, or at
    least somewhere.
    """
    for module in model.modules():
        kind = type(module)
        if kind.__module__.startswith(("torch.", "transformers.")):
            continue
        if CAUSAL_NAMES.search(kind.__name__):
            return f"its class is called {kind.__name__}"
        arguments = inspect.signature(module.forward).parameters
        caches = [n for n in arguments if CERTAIN.search(n) and not n.startswith("encoder")]
        if caches:
            return f"it takes `{caches[0]}`"
        for name, value in [*vars(module).items(), *buffers_of(module).items()]:
            if isinstance(value, torch.Tensor) and _is_triangle(value):
                return f"`{name}` of {kind.__name__} is a causal mask"
        if _builds_a_triangle(kind, always):
            return f"{kind.__name__} always builds a causal mask"
    return ""


def _is_triangle(value: torch.Tensor) -> bool:
    """Return whether a square table has one value in its lower half and another in its upper."""
    if value.dim() < 2 or value.shape[-1] != value.shape[-2] or value.shape[-1] < 4:
        return False
    table = value.reshape(-1, *value.shape[-2:])[0]
    lower = table[torch.ones_like(table, dtype=torch.bool).tril()]
    upper = table[torch.ones_like(table, dtype=torch.bool).triu(1)]
    return bool((lower == lower[0]).all() and (upper == upper[0]).all() and lower[0] != upper[0])


def _builds_a_triangle(kind: type, always: bool) -> bool:
    """Return whether a class builds a causal mask or asks for one, by default or somewhere."""
    for function in vars(kind).values():
        if not inspect.isfunction(function):
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        except (OSError, TypeError, SyntaxError):
            # Typed at a prompt: the names it uses are known, their conditions are not.
            if TRIANGLES & set(function.__code__.co_names):
                return True
            continue
        if any(map(_asks_for_causal, _by_default(tree) if always else ast.walk(tree))):
            return True
    return False


def _by_default(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the code that runs under no condition but that an argument was left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and _left_out(child.test):
            for line in child.body:
                yield from (line, *_by_default(line))
        elif not isinstance(child, ast.If | ast.IfExp):
            yield from (child, *_by_default(child))


def _left_out(test: ast.expr) -> bool:
    """Return whether a condition reads `name is None`."""
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and isinstance(test.ops[0], ast.Is)
        and isinstance(test.comparators[0], ast.Constant)
        and test.comparators[0].value is None
    )


def _asks_for_causal(node: ast.AST) -> bool:
    """Return whether a call builds a triangular mask or passes is_causal=True."""
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    asked = any(
        k.arg == "is_causal" and isinstance(k.value, ast.Constant) and k.value.value is True
        for k in node.keywords
    )
    return asked or name in TRIANGLES


def sign_of_order(model: nn.Module) -> str:
    """Return what suggests that the order of tokens matters to a model, or the empty string."""
    for path, module in model.named_modules():
        kind = type(module)
        if isinstance(module, ORDERED):
            return f"{path or kind.__name__} is a {kind.__name__}"
        if any(POSITION_NAMES.search(name) for name in [*names_of_parts(module), kind.__name__]):
            return f"{path or 'the model'} names positions"
        if kind.__module__.startswith("torch.nn"):
            continue
        try:
            code = inspect.getsource(kind)
        except (OSError, TypeError):
            return f"the code of {kind.__name__} cannot be read"
        if POSITION_CODE.search(code):
            return f"the code of {kind.__name__} counts positions"
    return ""
