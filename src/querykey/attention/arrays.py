"""The few questions that the equations ask of an array library: its namespace, its dtypes.

Floating work happens in the library of `q`. Index work (positions, visibility) happens there too
for torch and JAX, whose arrays live on devices and under tracers, and in NumPy for all others.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import array_api_compat as compat
import numpy as np

_NUMPY = np.empty(0)
Function = TypeVar("Function")
Array = Any  # no common base class exists: NumPy, torch, JAX and `querykey.ag` arrays


def library(array: Array) -> str:
    """Name the package an array comes from: "numpy", "torch", "jax", ..."""
    # Asked inside torch.compile, which warns about the caches that array_api_compat asks through.
    if isinstance(array, np.ndarray):
        return "numpy"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return "torch"
    return "jax" if compat.is_jax_array(array) else type(array).__module__.split(".")[0]


def namespace(array: Array) -> Any:
    """Return the array-API namespace of the library of an array."""
    match library(array):
        case "numpy":
            import array_api_compat.numpy as xp
        case "torch":
            import array_api_compat.torch as xp
        case _:
            xp = compat.array_namespace(array)
    return xp


def device_of(array: Array) -> Any:
    """Return where the array's numbers are."""
    return array.device if library(array) in ("numpy", "torch") else compat.device(array)


def values_are_at_hand(array: Array) -> bool:
    """Whether looking at an array's values costs nothing: not on a device, not traced."""
    kind = library(array)
    if kind != "torch":
        return kind in ("numpy", "querykey")
    return array.device.type == "cpu" and is_readable(array)


def is_readable(array: Array) -> bool:
    """Whether an array has values that can be looked at, if need be by waiting for its device.

    Arrays that torch.compile, make_fx, a transform, a CUDA graph or JAX traces have none, nor has
    meta's.
    """
    kind = library(array)
    if kind != "torch":
        return "Tracer" not in type(array).__name__
    import torch

    if torch.compiler.is_compiling() or type(array) not in (torch.Tensor, torch.nn.Parameter):
        return False
    inner: Any = torch._C
    if inner._get_dispatch_mode(inner._TorchDispatchModeKey.PROXY) is not None:
        return False
    if inner._functorch.peek_interpreter_stack() is not None or array.device.type == "meta":
        return False
    return not (array.device.type == "cuda" and torch.cuda.is_current_stream_capturing())


def host_values(tensor: Any) -> np.ndarray | None:
    """Return the values of a torch tensor where they are at hand."""
    return tensor.detach().numpy() if values_are_at_hand(tensor) else None


def constant_under_compile(function: Function) -> Function:
    """Let torch.compile call a function once, untraced, and keep what it returns.

    This is `torch.compiler.assume_constant_result`, without importing torch to say it.
    """
    marked: Any = function
    marked._dynamo_marked_constant = True
    return function


def is_array(value: Any) -> bool:
    """Whether `value` is an array of some library, rather than a Python number or a list."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def is_dense(array: Array) -> bool:
    """Whether an array holds one number per place: neither sparse, masked nor a matrix."""
    kind = library(array)
    if kind == "torch":
        return array.layout is sys.modules["torch"].strided
    return kind != "numpy" or not isinstance(array, (np.matrix, np.ma.MaskedArray))


def kind_of(array: Array) -> str:
    """Name what kind of array it is: its class, or the layout of a torch tensor."""
    if library(array) == "torch":
        return f"{str(array.layout).removeprefix('torch.')} tensor"
    return type(array).__name__


def described(array: Array, dtype: Any = None) -> str:
    """Say an array's library, dtype and device: "torch float32 on cpu"."""
    dtype = str(array.dtype if dtype is None else dtype).removeprefix("torch.")
    return f"{library(array)} {dtype} on {device_of(array)}"


def index_library(like: Array) -> tuple[Any, Any]:
    """Return (namespace, device) in which positions and masks for `like` are worked out."""
    if like is not None and library(like) in ("torch", "jax"):
        return namespace(like), device_of(like)
    return namespace(_NUMPY), None


def moved(array: Array, like: Array) -> Array:
    """Return an index or mask array in the index library and on the device of `like`.

    It is the array itself where it is there already.
    """
    xp, device = index_library(like)
    if is_array(array) and namespace(array) is xp:
        if device is None or device_of(array) == device:
            return array
        return array.to(device) if library(array) == "torch" else compat.to_device(array, device)
    if is_array(array) and library(array) == "torch":
        array = array.detach().cpu().numpy()
    # A copy: torch would share NumPy's memory, and warns where that is read-only.
    return xp.asarray(np.array(array), device=device)


def is_boolean(array: Array) -> bool:
    """Whether the entries are True and False."""
    return namespace(array).isdtype(array.dtype, "bool")


def is_integer(array: Array) -> bool:
    """Whether the entries are whole numbers, signed or not."""
    return namespace(array).isdtype(array.dtype, "integral")


def is_floating(array: Array) -> bool:
    """Whether the entries are real floating-point numbers."""
    return namespace(array).isdtype(array.dtype, "real floating")


def same_dtype(array: Array, other: Array) -> bool:
    """Whether two arrays of one library hold numbers of one type, in whatever order of bytes."""
    if array.dtype == other.dtype:
        return True
    if library(array) != "numpy":
        return False
    return array.dtype.newbyteorder("=") == other.dtype.newbyteorder("=")


def widened(array: Array) -> Array:
    """Return the array in the precision of scores and sums: float32 at least."""
    if array.dtype.itemsize >= 4:
        return array
    xp = namespace(array)
    return xp.astype(array, xp.float32)


def running_sum(array: Array, axis: int) -> Array:
    """Return the sums of the entries up to each one along an axis."""
    # Not array_api_compat's, whose cache torch.compile cannot trace.
    if library(array) == "torch":
        return array.cumsum(axis)
    return namespace(array).cumulative_sum(array, axis=axis)


def full_precision(like: Array) -> AbstractContextManager[Any]:
    """Return a context in which torch.autocast leaves float32 products alone."""
    if library(like) != "torch":
        return nullcontext()
    import torch

    kind = like.device.type
    if not torch.amp.is_autocast_available(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def constant(table: Any, like: Array) -> Array:
    """Return a table of booleans or whole numbers in the library and on the device of `like`."""
    return namespace(like).asarray(table, device=device_of(like))


def constant_reals(table: Any, like: Array) -> Array:
    """Return a table of real numbers in the library, dtype and device of `like`."""
    return namespace(like).asarray(table, dtype=like.dtype, device=device_of(like))
