"""What a Tensor answers to Python and to NumPy: sizes, conversions, NumPy's own functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from querykey.ag.extras.aliasing import lend


class ArrayLike:
    """The parts of an array that need no derivative; they read `_data`."""

    __slots__ = ()
    _data: np.ndarray
    stamp: int

    shape = property(lambda self: self._data.shape, doc="The size of every axis.")
    dtype = property(lambda self: self._data.dtype, doc="What an element is, as NumPy names it.")
    ndim = property(lambda self: self._data.ndim, doc="How many axes.")
    size = property(lambda self: self._data.size, doc="How many elements.")
    device = property(lambda self: "cpu", doc="Always the CPU.")

    def to_device(self, device: str, /, *, stream: None = None) -> Any:
        """Return the Tensor itself: there is one device."""
        if device != "cpu":
            raise ValueError(f"a Tensor lives on the device 'cpu', not on {device!r}")
        return self

    def numpy(self) -> np.ndarray:
        """Return the array itself."""
        return lend(self)

    def item(self) -> Any:
        """Return the one element as a Python number."""
        return self._data.item()

    def tolist(self) -> Any:
        """Return the elements as nested lists."""
        return self._data.tolist()

    def __iter__(self) -> Iterator[Any]:
        if not self._data.ndim:
            raise TypeError("a Tensor of one number has nothing to iterate over")
        return (self[i] for i in range(len(self._data)))

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
        return (
            super().__format__(spec) if self._data.ndim or not spec else format(self.item(), spec)
        )

    def __repr__(self) -> str:
        values = np.array2string(self._data, separator=", ", prefix="Tensor(")
        notes = [(key, getattr(self, key)) for key in ("label", "op")]
        return f"Tensor({values}{''.join(f', {key}={note!r}' for key, note in notes if note)})"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._data if copy else lend(self), dtype=dtype, copy=copy)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options:
            raise TypeError(f"np.{ufunc.__name__}.{method} with options records no derivative")
        return of_the_same_name(ufunc)(*inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        name = function.__name__
        if name in ("shape", "ndim", "size"):
            return function(*map(raw, args), **kwargs)
        if len(args) > BY_NAME.get(name, len(args)):
            raise TypeError(f"np.{name} of a Tensor takes what follows the axis by name")
        return of_the_same_name(function)(*args, **kwargs)

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        from querykey.ag.tensor import tick

        for name, value in state[1].items():
            setattr(self, name, value)
        self.stamp = min(self.stamp, tick())  # another process may be ahead

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        from querykey.ag.extras import array_api

        return array_api

    if TYPE_CHECKING:  # operators.py gives these their meaning
        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = cast(Any, 0)
        __rtruediv__ = __matmul__ = __rmatmul__ = __pow__ = __rpow__ = __neg__ = cast(Any, 0)
        __abs__ = __getitem__ = __lt__ = __le__ = __gt__ = __ge__ = __and__ = cast(Any, 0)
        __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = __mod__ = cast(Any, 0)
        __rmod__ = __floordiv__ = __rfloordiv__ = __pos__ = cast(Any, 0)
        T = sum = mean = var = max = min = argmax = reshape = transpose = cast(Any, 0)
        mT = swapaxes = squeeze = astype = cast(Any, 0)  # noqa: N815


def raw(value: Any) -> Any:
    """Return a Tensor's array, and a number as it is: a number never widens an array's dtype."""
    if isinstance(value, ArrayLike):
        return value._data
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, float):
        return float(value)  # np.float64 is a float too, but one that turns float32 into float64
    if isinstance(value, int | np.integer):
        return int(value) if isinstance(value, np.integer) else value
    return np.asarray([raw(v) for v in value] if isinstance(value, list | tuple) else value)


def plain_index(index: Any) -> Any:
    """Return an index with arrays of its own, that nobody changes later, in place of any others."""
    if isinstance(index, tuple):
        return tuple([_own(i) for i in index])
    return _own(index)


def _own(index: Any) -> Any:
    if index is None or isinstance(index, slice | int | np.generic) or index is Ellipsis:
        return index
    if hasattr(index, "__index__") and not hasattr(index, "__array__"):
        return index
    array = np.array(raw(index))
    return array.astype(int) if isinstance(index, list | tuple) and not array.size else array


# How many arguments of a function of NumPy's mean what ours mean; the others go by name.
BY_NAME = dict.fromkeys(("sum", "mean", "var", "max", "min", "argmax"), 2) | {"norm": 1}


def of_the_same_name(function: Any) -> Any:
    """Return the function of ours that NumPy's is called like."""
    import querykey.ag as ag
    from querykey.ag.extras import array_api

    ours = getattr(ag, function.__name__, None) or getattr(array_api, function.__name__, None)
    if ours is None:
        raise TypeError(
            f"np.{function.__name__} would lose the gradient, and ag has nothing of that name: "
            f"give it the array, x.data, or write the primitive with ag.record"
        )
    return ours
