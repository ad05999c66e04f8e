"""Does anything in a model know positions? Judged by names, layers and code."""

from __future__ import annotations

import inspect
import re

from torch import nn

from querykey.laws.runner import Specimen

NAMES = re.compile(
    r"pos|rope|rotary|alibi|relative|freq|wpe|time|decay|conv|shift|window|order", re.I
)
CODE = re.compile(
    r"arange|linspace|cumsum|roll\(|\.sin\(|\.cos\(|conv|\bpos|flip|tril|triu|shift|unfold|enumerate"
)
ORDERED = (nn.RNNBase, nn.RNNCellBase, nn.modules.conv._ConvNd, nn.modules.pooling._AvgPoolNd)


def sign_of_order(specimen: Specimen) -> str:
    """What suggests that order matters, or nothing."""
    model = specimen.bench.model
    for path, module in model.named_modules():
        kind = type(module)
        if isinstance(module, ORDERED):
            return f"{path or kind.__name__} is a {kind.__name__}"
        named = [*module._parameters, *module._buffers, *module._modules, kind.__name__]
        if any(NAMES.search(name) for name in named):
            return f"{path or 'the model'} names positions"
        if kind.__module__.startswith("torch.nn"):
            continue
        try:
            code = inspect.getsource(kind)
        except (OSError, TypeError):
            return f"the code of {kind.__name__} cannot be read"
        if CODE.search(code):
            return f"the code of {kind.__name__} counts"
    return ""
