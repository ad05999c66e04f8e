"""The Python array API namespace: what `x.__array_namespace__()` returns for a Tensor x.

Code written against the standard (or through array-api-compat) runs on Tensors, and its derivatives
come with it. Functions whose answer is no float return constants; new arrays are constants too.
What has no derivative refuses a Tensor that wants one.
"""

from __future__ import annotations

import numpy as np

from querykey.ag.division import divide
from querykey.ag.elementary import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    ceil,
    copysign,
    cosh,
    expm1,
    floor,
    floor_divide,
    hypot,
    log1p,
    log2,
    log10,
    logaddexp,
    reciprocal,
    round,
    sign,
    sinh,
    tan,
    trunc,
)
from querykey.ag.errors import refuse_tensors_that_want
from querykey.ag.extras.array_api import linalg
from querykey.ag.extras.array_api.creation import (
    arange,
    asarray,
    astype,
    empty,
    empty_like,
    eye,
    from_dlpack,
    full,
    full_like,
    linspace,
    meshgrid,
    ones,
    ones_like,
    tril,
    triu,
    zeros,
    zeros_like,
)
from querykey.ag.extras.array_api.info import __array_namespace_info__
from querykey.ag.extras.array_api.manipulation import (
    broadcast_arrays,
    can_cast,
    clip,
    concat,
    expand_dims,
    finfo,
    flip,
    iinfo,
    isdtype,
    matrix_transpose,
    permute_dims,
    repeat,
    reshape,
    result_type,
    roll,
    squeeze,
    stack,
    tensordot,
    tile,
    unstack,
    vecdot,
)
from querykey.ag.extras.array_api.statistics import (
    all,
    any,
    argmax,
    argmin,
    argsort,
    count_nonzero,
    cumulative_prod,
    cumulative_sum,
    diff,
    max,
    mean,
    min,
    nonzero,
    prod,
    searchsorted,
    sort,
    std,
    sum,
    unique_all,
    unique_counts,
    unique_inverse,
    unique_values,
    var,
)
from querykey.ag.functions import broadcast_to, moveaxis, take, take_along_axis, where
from querykey.ag.operators import of_two_without_gradient, without_gradient
from querykey.ag.primitives import (
    abs,
    add,
    cos,
    exp,
    log,
    matmul,
    maximum,
    minimum,
    multiply,
    negative,
    power,
    sin,
    sqrt,
    square,
    subtract,
    tanh,
)
from querykey.ag.primitives import mod as remainder
from querykey.ag.protocols import raw
from querykey.ag.reductions import logsumexp
from querykey.ag.tensor import Tensor, record

__all__ = [
    "__array_api_version__",
    "__array_namespace_info__",
    "abs",
    "absolute",
    "acos",
    "acosh",
    "add",
    "all",
    "any",
    "arange",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "argmax",
    "argmin",
    "argsort",
    "asarray",
    "asin",
    "asinh",
    "astype",
    "atan",
    "atan2",
    "atanh",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "bool",
    "broadcast_arrays",
    "broadcast_to",
    "can_cast",
    "ceil",
    "clip",
    "concat",
    "conj",
    "copysign",
    "cos",
    "cosh",
    "count_nonzero",
    "cumulative_prod",
    "cumulative_sum",
    "diff",
    "divide",
    "e",
    "empty",
    "empty_like",
    "equal",
    "exp",
    "expand_dims",
    "expm1",
    "eye",
    "finfo",
    "flip",
    "float32",
    "float64",
    "floor",
    "floor_divide",
    "from_dlpack",
    "full",
    "full_like",
    "greater",
    "greater_equal",
    "hypot",
    "iinfo",
    "imag",
    "inf",
    "int8",
    "int16",
    "int32",
    "int64",
    "isdtype",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "linalg",
    "linspace",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logsumexp",
    "matmul",
    "matrix_transpose",
    "max",
    "maximum",
    "mean",
    "meshgrid",
    "min",
    "minimum",
    "moveaxis",
    "multiply",
    "nan",
    "negative",
    "newaxis",
    "nextafter",
    "nonzero",
    "not_equal",
    "ones",
    "ones_like",
    "permute_dims",
    "pi",
    "positive",
    "pow",
    "power",
    "prod",
    "real",
    "reciprocal",
    "remainder",
    "repeat",
    "reshape",
    "result_type",
    "roll",
    "round",
    "searchsorted",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "sort",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "subtract",
    "sum",
    "take",
    "take_along_axis",
    "tan",
    "tanh",
    "tensordot",
    "tile",
    "tril",
    "triu",
    "trunc",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
    "unstack",
    "var",
    "vecdot",
    "where",
    "zeros",
    "zeros_like",
]

__array_api_version__ = "2024.12"

bool = np.dtype("bool")
int8, int16, int32, int64 = (np.dtype(f"int{n}") for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (np.dtype(f"uint{n}") for n in (8, 16, 32, 64))
float32, float64 = np.dtype("float32"), np.dtype("float64")
e, inf, nan, newaxis, pi = np.e, np.inf, np.nan, None, np.pi

pow = power
# The names under which NumPy's own functions call us.
absolute, arccos, arccosh, arcsin, arcsinh = abs, acos, acosh, asin, asinh
arctan, arctan2, arctanh = atan, atan2, atanh

isfinite = without_gradient("isfinite", np.isfinite)
isinf = without_gradient("isinf", np.isinf)
isnan = without_gradient("isnan", np.isnan)
signbit = without_gradient("signbit", np.signbit)
logical_not = without_gradient("logical_not", np.logical_not)
bitwise_invert = without_gradient("bitwise_invert", np.invert)
equal = of_two_without_gradient("equal", np.equal)
not_equal = of_two_without_gradient("not_equal", np.not_equal)
less = of_two_without_gradient("less", np.less)
less_equal = of_two_without_gradient("less_equal", np.less_equal)
greater = of_two_without_gradient("greater", np.greater)
greater_equal = of_two_without_gradient("greater_equal", np.greater_equal)
logical_and = of_two_without_gradient("logical_and", np.logical_and)
logical_or = of_two_without_gradient("logical_or", np.logical_or)
logical_xor = of_two_without_gradient("logical_xor", np.logical_xor)
bitwise_and = of_two_without_gradient("bitwise_and", np.bitwise_and)
bitwise_or = of_two_without_gradient("bitwise_or", np.bitwise_or)
bitwise_xor = of_two_without_gradient("bitwise_xor", np.bitwise_xor)
bitwise_left_shift = of_two_without_gradient("bitwise_left_shift", np.left_shift)
bitwise_right_shift = of_two_without_gradient("bitwise_right_shift", np.right_shift)


def positive(x, /) -> Tensor:
    """Return x."""
    return x if isinstance(x, Tensor) else record("positive", np.asarray(raw(x)))


def conj(x, /) -> Tensor:
    """Return x, as all numbers here are real."""
    return positive(x)


def real(x, /) -> Tensor:
    """Return x, as all numbers here are real."""
    return positive(x)


def imag(x, /) -> Tensor:
    """Return zeros, as all numbers here are real."""
    return zeros_like(x)


def nextafter(x1, x2, /) -> Tensor:
    """Return the next number after x1 towards x2; a Tensor that wants a gradient is refused."""
    refuse_tensors_that_want("nextafter", x1, x2)
    return record("nextafter", np.nextafter(raw(x1), raw(x2)))
