"""What a model's own source says about being causal: names, buffers, the masks that it builds."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator

import torch
from torch import nn

from querykey.laws.understanding.cache_protocol import CERTAIN

NAMES = re.compile(r"GPT|Causal|Autoregress|DecoderOnly|LanguageModel")
TRIANGLES = {"tril", "triu", "generate_square_subsequent_mask"}


def code_says(model: nn.Module, always: bool = True) -> str:
    """What the user's own classes are called, hold, take and (always, or somewhere) build."""
    for module in model.modules():
        kind = type(module)
        if kind.__module__.startswith(("torch.", "transformers.")):
            continue
        if NAMES.search(kind.__name__):
            return f"its class is called {kind.__name__}"
        arguments = inspect.signature(module.forward).parameters
        caches = [n for n in arguments if CERTAIN.search(n) and not n.startswith("encoder")]
        if caches:
            return f"it takes `{caches[0]}`"
        for name, value in [*vars(module).items(), *module._buffers.items()]:
            if isinstance(value, torch.Tensor) and _is_triangle(value):
                return f"`{name}` of {kind.__name__} is a causal mask"
        if _builds_a_triangle(kind, always):
            return f"{kind.__name__} always builds a causal mask"
    return ""


def _is_triangle(value: torch.Tensor) -> bool:
    """A square table whose upper half differs from its lower half, each being one value."""
    if value.dim() < 2 or value.shape[-1] != value.shape[-2] or value.shape[-1] < 4:
        return False
    table = value.reshape(-1, *value.shape[-2:])[0]
    lower = table[torch.ones_like(table, dtype=torch.bool).tril()]
    upper = table[torch.ones_like(table, dtype=torch.bool).triu(1)]
    return bool((lower == lower[0]).all() and (upper == upper[0]).all() and lower[0] != upper[0])


def _builds_a_triangle(kind: type, always: bool) -> bool:
    """Whether its code makes a causal mask, or asks for one; by default, or at least somewhere."""
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
    """What runs under no condition but that an argument was left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and _left_out(child.test):
            for line in child.body:
                yield from (line, *_by_default(line))
        elif not isinstance(child, ast.If | ast.IfExp):
            yield from (child, *_by_default(child))


def _left_out(test: ast.expr) -> bool:
    """Whether it reads `name is None`."""
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and isinstance(test.ops[0], ast.Is)
        and isinstance(test.comparators[0], ast.Constant)
        and test.comparators[0].value is None
    )


def _asks_for_causal(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    asked = any(
        k.arg == "is_causal" and isinstance(k.value, ast.Constant) and k.value.value is True
        for k in node.keywords
    )
    return asked or name in TRIANGLES
