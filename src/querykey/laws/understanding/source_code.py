"""What a model's own source says about the order of tokens: that it matters."""

from __future__ import annotations

import inspect
import re

from torch import nn

from querykey.laws.private import AVERAGE_POOLS, CONVOLUTIONS, names_of_parts

POSITION_NAMES = re.compile(
    r"pos|rope|rotary|alibi|relative|freq|wpe|time|decay|conv|shift|window|order", re.I
)
POSITION_CODE = re.compile(
    r"arange|linspace|cumsum|roll\(|\.sin\(|\.cos\(|conv|\bpos|flip|tril|triu|shift|unfold|enumerate"
)
ORDERED = (nn.RNNBase, nn.RNNCellBase, CONVOLUTIONS, AVERAGE_POOLS)


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
