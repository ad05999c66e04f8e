"""What builds a target again, at other values of the fields that it leaves open."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

from torch import nn

from querykey.targets.errors import TargetError
from querykey.targets.factories import factory_at
from querykey.targets.outlines import Fields, config_file, maker_of_preset, outline
from querykey.targets.target import PRESETS
from querykey.words import checked, suggest

BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@checked
def source_of(name: str, fields: Fields | None = None) -> nn.Module | Callable[..., nn.Module]:
    """Return what builds a target at other values of its fields.

    That is a Hugging Face model (see `rebuilt`), or a function whose arguments are the fields of a
    preset or of a Python factory, without those that are set.
    """
    name, fields = name.strip(), dict(fields or {})
    if name.startswith("hf:") or config_file(name) is not None:
        return outline(name, fields).model
    if name in PRESETS:
        make = maker_of_preset(name)
    elif ":" in name and not os.path.isdir(name):
        make = factory_at(name, name)
    else:
        return outline(name, fields).model
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):
        raise TargetError(f"`{name}`: the arguments of this factory cannot be read") from None
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for field in fields:
        if field not in parameters and not takes_any:
            raise TargetError(f"`{name}` has no argument `{field}`{suggest(field, parameters)}")
    left = [p for n, p in parameters.items() if n not in fields and p.kind in BY_NAME]

    def build(**sizes: Any) -> nn.Module:
        return make(**fields, **sizes)

    by_name = (p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in left)
    vars(build)["__signature__"] = inspect.Signature([*by_name])
    return build
