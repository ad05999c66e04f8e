"""Large models made small: their first layers, and their first words, where that is all alike.

Laws say nothing of sizes. A stack of like layers breaks them in its first ones, and a vocabulary
in its first words; what differs from layer to layer is kept.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import nn

from querykey.laws.understanding.outputs import tensors
from querykey.laws.understanding.reachable import attributes
from querykey.targets import is_hugging_face

LARGE = 20_000_000  # parameters above which a model is made smaller
LAYERS = 2  # of a stack that are kept at least
WORDS = 1021
NUMBERS = re.compile(r"idx|index|layer|block|depth|number|(^|_)i?d?$")  # a layer's own number


def shrunk(model: nn.Module, words: bool) -> tuple[nn.Module, str]:
    """Return a smaller model of the same kind, and what it is in words; a small model as it is.

    The model that is given is neither run nor changed. `words` says that its vocabulary may become
    smaller, too; that is done only if the scores of the words that stay are the same.
    """
    count = sum(p.numel() for p in model.parameters())
    if count < LARGE or is_hugging_face(model) or isinstance(model, torch.jit.ScriptModule):
        return model, ""
    stacks = dict(_stacks(model))
    known = {id(p): p for p in model.parameters()}  # shared, not copied
    fewer = _without(model, stacks, known) if stacks else model
    parts = [f"{kept} of {len(_stack(model, path))} layers" for path, kept in stacks.items()]
    small, kept = _with_fewer_words(model, fewer, stacks, known) if words else (None, "")
    if small is not None:
        fewer, parts = small, [*parts, kept]
    return (fewer, f"its first {' and '.join(parts)}") if parts else (model, "")


def _stacks(model: nn.Module) -> Iterator[tuple[str, int]]:
    """Yield lists of layers with the number that shows every kind of layer in them."""
    outer = ()
    for path, module in model.named_modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential) or len(module) < 2 * LAYERS:
            continue
        if path.startswith(outer):
            continue  # a stack in a stack stays as it is
        kinds = [_kind(layer, index) for index, layer in enumerate(module)]
        needed = max(LAYERS, max(kinds.index(kind) + 1 for kind in kinds))
        heavy = all(any(True for _ in layer.parameters()) for layer in module)
        if heavy and needed <= len(module) // 2:
            outer = (*outer, f"{path}." if path else "")
            yield path, needed


def _stack(model: nn.Module, path: str) -> nn.ModuleList:
    """Return the list of layers at this path."""
    return cast(nn.ModuleList, model.get_submodule(path))


def _kind(layer: nn.Module, index: int) -> tuple[Any, ...]:
    """Return what tells layers apart: classes, sizes, and plain attributes but their number."""
    return tuple(
        (
            path,
            type(module),
            tuple(tuple(p.shape) for p in module.parameters(recurse=False)),
            tuple(
                (name, value)
                for name, value in sorted(attributes(module).items())
                if isinstance(value, str | bool | int | float)
                and not (value == index and NUMBERS.search(name))
            ),
        )
        for path, module in layer.named_modules()
    )


def _without(model: nn.Module, stacks: dict[str, int], memo: dict[int, Any]) -> nn.Module:
    """Return a copy without the later layers of its stacks; `memo` holds what is not copied."""
    memo = dict(memo)
    for path, kept in stacks.items():
        for layer in _stack(model, path)[kept:]:
            memo[id(layer)] = nn.Identity()
    copied = copy.deepcopy(model, memo)
    for path, kept in stacks.items():
        del _stack(copied, path)[kept:]
    return copied


def _with_fewer_words(
    model: nn.Module, fewer: nn.Module, stacks: dict[str, int], known: dict[int, Any]
) -> tuple[nn.Module | None, str]:
    """Return a copy that knows the first words alone, if it scores them as before."""
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    size = max((m.num_embeddings for m in tables), default=0)
    if size < 4 * WORDS or any((m.padding_idx or 0) >= WORDS for m in tables):
        return None, ""
    memo = dict(known)
    for parameter in model.parameters():
        if parameter.shape[:1] == (size,):
            first = parameter.detach()[:WORDS].clone()
            memo[id(parameter)] = nn.Parameter(first, requires_grad=parameter.requires_grad)
    small = _without(model, stacks, memo)
    for module in small.modules():
        if isinstance(module, nn.Embedding) and module.num_embeddings == size:
            module.num_embeddings = WORDS
        elif isinstance(module, nn.Linear) and module.out_features == size:
            module.out_features = WORDS
    if not _scores_alike(copy.deepcopy(fewer, dict(known)), copy.deepcopy(small, dict(known))):
        return None, ""
    return small, f"{WORDS:,} of {size:,} words"


def _scores_alike(first: nn.Module, second: nn.Module) -> bool:
    """Return whether two copies, called with the same ids, score the words that both know alike."""
    ids = torch.randint(0, WORDS, (2, 7), generator=torch.Generator().manual_seed(0))
    name = next(iter(inspect.signature(first.forward).parameters), "")
    try:
        with torch.no_grad():
            outputs = [model.eval()(**{name: ids.to(_device(model))}) for model in (first, second)]
    except Exception:
        return False
    before, after = ([t for _, t in tensors(output) if t.dim() == 3] for output in outputs)
    pairs = list(zip(before, after, strict=False))
    return bool(pairs) and all(
        torch.allclose(a[..., : b.shape[-1]], b, rtol=1e-3, atol=1e-4 * float(b.abs().max()))
        for a, b in pairs
    )


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
