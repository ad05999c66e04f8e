"""The few questions that the equations ask of an array library: its namespace, its dtypes.

Floating work happens in the library of `q`. Index work (positions, visibility) happens there too
for torch and JAX, whose arrays live on devices and under tracers, and in NumPy for all others.
"""

from __future__ import annotations

from typing import Any

import array_api_compat as compat
import numpy as np

Array = Any  # no common base class exists: NumPy, torch, JAX and `querykey.ag` arrays


def namespace(*arrays: Array) -> Any:
    """Return the array-API namespace that the arrays share."""
    return compat.array_namespace(*arrays)


def is_array(value: Any) -> bool:
    """Whether `value` is an array of some library, rather than a Python number or a list."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def library(array: Array) -> str:
    """Name the package an array comes from: "numpy", "torch", "jax", ..."""
    for name, found in (
        ("numpy", compat.is_numpy_array(array)),
        ("torch", compat.is_torch_array(array)),
        ("jax", compat.is_jax_array(array)),
    ):
        if found:
            return name
    return type(array).__module__.split(".")[0]


def described(array: Array, dtype: Any = None) -> str:
    """Say an array's library, dtype and device: "torch float32 on cpu"."""
    dtype = str(array.dtype if dtype is None else dtype).removeprefix("torch.")
    return f"{library(array)} {dtype} on {compat.device(array)}"


def index_library(like: Array) -> tuple[Any, Any]:
    """Return (namespace, device) in which positions and masks for `like` are worked out."""
    if like is not None and library(like) in ("torch", "jax"):
        return namespace(like), compat.device(like)
    return compat.array_namespace(np.empty(0)), None


def moved(array: Array, like: Array) -> Array:
    """Return an index or mask array in the index library of `like`; itself where it is there."""
    xp, device = index_library(like)
    if is_array(array) and compat.array_namespace(array) is xp:
        return array
    if is_array(array) and library(array) == "torch":
        array = array.detach().cpu().numpy()
    return xp.asarray(np.asarray(array), device=device)


def is_boolean(array: Array) -> bool:
    """Whether the entries are True and False."""
    return namespace(array).isdtype(array.dtype, "bool")


def is_integer(array: Array) -> bool:
    """Whether the entries are whole numbers, signed or not."""
    return namespace(array).isdtype(array.dtype, "integral")


def is_floating(array: Array) -> bool:
    """Whether the entries are real floating-point numbers."""
    return namespace(array).isdtype(array.dtype, "real floating")


def widened(array: Array) -> Array:
    """Return the array in the precision of scores and sums: float32 at least."""
    xp = namespace(array)
    if array.dtype in (xp.float32, xp.float64):
        return array
    return xp.astype(array, xp.float32)


def constant(array: np.ndarray, like: Array) -> Array:
    """Return a NumPy table where `like` is: its library, its device, its dtype for real numbers."""
    xp = namespace(like)
    dtype = like.dtype if array.dtype.kind == "f" else None
    return xp.asarray(array, dtype=dtype, device=compat.device(like))
