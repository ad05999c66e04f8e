"""Functions made operators of torch: what autograd, torch.compile and `qk cost` see as one step."""

from __future__ import annotations

from collections.abc import Callable

import torch


def operator(name: str, run: Callable, shapes: Callable) -> Callable:
    """Make an operator from its function and one that returns results of the right shapes.

    This is `torch.library.custom_op` without the import of torch's compiler at the first call,
    which takes a second or two.
    """
    name = f"querykey::{name}"
    torch.library.define(name, torch.library.infer_schema(run, mutates_args=()))
    torch.library.impl(name, "default")(run)
    torch.library.register_fake(name)(shapes)
    return getattr(torch.ops.querykey, name.partition("::")[2]).default
