"""A backend with which einops works on Tensors: rearrange, reduce, repeat, einsum, pack.

einops finds its backends among the subclasses of its AbstractBackend. Ours is defined as soon as
einops is imported, be that before or after this package; nothing here imports einops.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np

from querykey.ag import functions
from querykey.ag.extras import array_api
from querykey.ag.tensor import Tensor, record
from querykey.errors import WrongTypeError

BACKENDS = "einops._backends"
PACKAGE = __name__.partition(".extras")[0]  # which einops looks for among the loaded modules
REGISTERED: list[type] = []  # Python forgets a class that nobody holds


def when_einops_is_imported() -> None:
    """Register our backend now if einops is loaded, else as soon as it will be."""
    if BACKENDS in sys.modules:
        register(sys.modules[BACKENDS])
    elif not any(isinstance(finder, Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, Watcher())


class Watcher(MetaPathFinder, Loader):
    """A finder that lets Python import einops' backends, then registers ours and removes itself."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """Return the spec that the other finders give, with this object around its loader."""
        if fullname != BACKENDS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return the module that the real loader creates."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Load the module, then add our backend to it."""
        module.__loader__ = self.loader
        self.loader.exec_module(module)
        register(module)


def register(backends: Any) -> None:
    """Define our backend: einops finds it because it is a subclass of its own."""

    class AgBackend(backends.AbstractBackend):
        """The few operations that einops needs, in terms of our functions."""

        framework_name = PACKAGE

        def is_appropriate_type(self, tensor: Any) -> bool:
            return isinstance(tensor, Tensor)

        def from_numpy(self, x: Any) -> Tensor:
            return Tensor(x)

        def to_numpy(self, x: Tensor) -> np.ndarray:
            return x.data

        def arange(self, start: int, stop: int) -> Tensor:
            return record("arange", np.arange(start, stop))

        def reduce(self, x: Tensor, operation: str, axes: Any) -> Tensor:
            if operation == "prod":
                raise WrongTypeError(
                    "querykey.ag has no product over axes: exp(sum(log(x))), where x > 0"
                )
            return getattr(array_api, operation)(x, axis=tuple(axes))

        def stack_on_zeroth_dimension(self, tensors: list) -> Tensor:
            return functions.stack(tensors)

        def add_axis(self, x: Tensor, new_position: int) -> Tensor:
            return functions.expand_dims(x, new_position)

        def tile(self, x: Tensor, repeats: tuple[int, ...]) -> Tensor:
            shape = tuple(n * r for n, r in zip(x.shape, repeats, strict=True))
            return functions.broadcast_to(x, shape)  # einops repeats axes of size one only

        def concat(self, tensors: list, axis: int) -> Tensor:
            return functions.concatenate(tensors, axis)

        def is_float_type(self, x: Tensor) -> bool:
            return x.dtype.kind == "f"

        def einsum(self, pattern: str, *x: Tensor) -> Tensor:
            return functions.einsum(pattern, *x)

    REGISTERED.append(AgBackend)
