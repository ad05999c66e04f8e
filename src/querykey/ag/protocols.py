"""What a Tensor answers to Python and to NumPy: sizes, conversions, NumPy's own functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from querykey.ag.hooks import hooks
from querykey.errors import GraphError, QuerykeyError, WrongTypeError

REAL = "fiub"  # the kinds of dtypes that a Tensor has
# How many arguments of a function of NumPy's mean what ours mean; the others go by name.
BY_NAME = dict.fromkeys(("sum", "mean", "var", "std", "prod", "max", "min", "argmax"), 2) | {
    "norm": 1
}


class ArrayLike:
    """The parts of a Tensor that need no derivative; they read its array, `_data`."""

    __slots__ = ()
    _data: np.ndarray
    functions: ClassVar[dict[str, Callable[..., Any]]] = {}  # ours, by the name NumPy has for each

    shape = property(lambda self: self._data.shape, doc="The size of every axis.")
    dtype = property(lambda self: self._data.dtype, doc="The type of an element, as in NumPy.")
    ndim = property(lambda self: self._data.ndim, doc="The number of axes of the array.")
    size = property(lambda self: self._data.size, doc="The number of elements of the array.")
    device = property(lambda self: "cpu", doc="Always the CPU: there is no other.")

    def to_device(self, device: str, /, *, stream: None = None) -> Any:
        """Return the Tensor itself, because there is one device."""
        if device != "cpu":
            raise QuerykeyError(f"a Tensor lives on the device 'cpu', not on {device!r}")
        return self

    def numpy(self) -> np.ndarray:
        """Return the array itself, not a copy."""
        return hooks.watch.lend(self)

    def item(self) -> Any:
        """Return the one element as a Python number."""
        return self._data.item()

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers."""
        return self._data.tolist()

    def __iter__(self) -> Iterator[Any]:
        if not self._data.ndim:
            raise WrongTypeError("a Tensor of one number has nothing to iterate over")
        return (self[i] for i in range(len(self._data)))

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Any = None,
        dl_device: Any = None,
        copy: Any = None,
    ) -> Any:
        if getattr(self, "requires_grad", False):
            raise GraphError("another library would lose the gradient: export x.detach()")
        return self._data.__dlpack__(
            stream=stream, max_version=max_version, dl_device=dl_device, copy=copy
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._data.__dlpack_device__()

    def __len__(self) -> int:
        return len(self._data)

    def __bool__(self) -> bool:
        return bool(self._data)

    def __float__(self) -> float:
        return float(self._data)

    def __int__(self) -> int:
        return int(self._data)

    def __index__(self) -> int:
        return self._data.__index__()

    def __format__(self, spec: str) -> str:
        if self._data.ndim or not spec:
            return super().__format__(spec)
        return format(self.item(), spec)

    def __repr__(self) -> str:
        values = np.array2string(self._data, separator=", ", prefix="Tensor(")
        notes = [(key, getattr(self, key)) for key in ("label", "op")]
        return f"Tensor({values}{''.join(f', {key}={note!r}' for key, note in notes if note)})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._data if copy else hooks.watch.lend(self), dtype=dtype, copy=copy)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options:
            raise WrongTypeError(f"np.{ufunc.__name__}.{method} with options records no derivative")
        return self.function_named(ufunc.__name__)(*inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        name = function.__name__
        if name in ("shape", "ndim", "size"):
            return function(*map(raw, args), **kwargs)
        if len(args) > BY_NAME.get(name, len(args)):
            raise WrongTypeError(f"np.{name} of a Tensor takes what follows the axis by name")
        return self.function_named(name)(*args, **kwargs)

    def function_named(self, name: str) -> Callable[..., Any]:
        """Return our function with the name of one of NumPy's, which has its derivative."""
        ours = self.functions.get(name) or getattr(hooks.namespace, name, None)
        if ours is None:
            raise WrongTypeError(
                f"np.{name} would lose the gradient, and ag has nothing of that name: "
                f"give it the array, x.data, or write the primitive with ag.record"
            )
        return ours

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return hooks.namespace

    if TYPE_CHECKING:  # operators.py gives these their meaning
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = cast(Any, 0)
        __rtruediv__ = __matmul__ = __rmatmul__ = __pow__ = __rpow__ = __neg__ = cast(Any, 0)
        __abs__ = __getitem__ = __lt__ = __le__ = __gt__ = __ge__ = __and__ = cast(Any, 0)
        __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = __mod__ = cast(Any, 0)
        __rmod__ = __floordiv__ = __rfloordiv__ = __pos__ = __lshift__ = cast(Any, 0)
        __rlshift__ = __rshift__ = __rrshift__ = std = prod = cast(Any, 0)
        T = sum = mean = var = max = min = argmax = reshape = transpose = cast(Any, 0)
        mT = swapaxes = squeeze = astype = cast(Any, 0)  # noqa: N815


def raw(value: Any) -> Any:
    """Return a Tensor's array, and a number as it is: a number never widens an array's dtype."""
    if isinstance(value, ArrayLike):
        return value._data
    if isinstance(value, np.ndarray):
        return value if value.dtype.kind in REAL else refuse_kind(value)
    if isinstance(value, float):
        return float(value)  # np.float64 is a float too, but one that turns float32 into float64
    if isinstance(value, int | np.integer):
        return int(value) if isinstance(value, np.integer) else value
    array = np.asarray([raw(v) for v in value] if isinstance(value, list | tuple) else value)
    return array if array.dtype.kind in REAL else refuse_kind(value)


def refuse_kind(value: Any) -> Any:
    """Raise the error for what is no array of real numbers, integers or booleans."""
    kind = getattr(value, "dtype", type(value).__name__)
    raise WrongTypeError(f"ag computes with real numbers and booleans, not with {kind}")


def as_floats(x: Any) -> np.ndarray:
    """Return x as an array of floats."""
    v = np.asarray(raw(x))
    return v if v.dtype.kind == "f" else v.astype(float)


def plain_index(index: Any) -> Any:
    """Return an index in which every array is a copy, so that nobody changes it before backward."""
    if isinstance(index, tuple):
        return tuple([copied(i) for i in index])
    return copied(index)


def copied(index: Any) -> Any:
    """Return one part of an index: a slice or number as it is, anything else as a new array."""
    if index is None or isinstance(index, slice | int | np.generic) or index is Ellipsis:
        return index
    if hasattr(index, "__index__") and not hasattr(index, "__array__"):
        return index
    array = np.array(raw(index))
    return array.astype(int) if isinstance(index, list | tuple) and not array.size else array
