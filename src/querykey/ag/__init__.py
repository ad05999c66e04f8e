"""A reverse-mode engine over NumPy, for those who want to see every derivative.

    import querykey.ag as ag
    w = ag.Tensor(np.random.randn(3, 3), label="w")
    loss = ag.sum(ag.tanh(x @ w))
    loss.backward()
    w.grad

tensor.py has the walk, primitives.py the derivatives; read those two first.

A Tensor that is changed in place before backward is noticed. A plain array beside one is read where
it lies, and not watched: do not reuse its memory before backward.
"""

from querykey.ag import nn, optim
from querykey.ag.draw import Drawing, draw
from querykey.ag.einsum import einsum
from querykey.ag.extras.einops import when_einops_is_imported
from querykey.ag.extras.pages import keep_pages
from querykey.ag.functions import (
    expand_dims,
    moveaxis,
    split,
    squeeze,
    stack,
    swapaxes,
    take,
    take_along_axis,
)
from querykey.ag.gradcheck import gradcheck
from querykey.ag.operators import give_operators, record
from querykey.ag.primitives import (
    abs,
    add,
    argmax,
    astype,
    broadcast_to,
    clip,
    concatenate,
    cos,
    cumsum,
    erf,
    exp,
    gelu,
    getitem,
    log,
    matmul,
    max,
    maximum,
    mean,
    min,
    minimum,
    mod,
    multiply,
    negative,
    norm,
    power,
    relu,
    reshape,
    sigmoid,
    sin,
    sqrt,
    square,
    subtract,
    sum,
    tanh,
    transpose,
    tril,
    triu,
    var,
    where,
)
from querykey.ag.reductions import divide, log_softmax, logsumexp, softmax
from querykey.ag.tensor import Tensor

__all__ = [
    "Drawing",
    "Tensor",
    "abs",
    "add",
    "argmax",
    "astype",
    "broadcast_to",
    "clip",
    "concatenate",
    "cos",
    "cumsum",
    "divide",
    "draw",
    "einsum",
    "erf",
    "exp",
    "expand_dims",
    "gelu",
    "getitem",
    "gradcheck",
    "keep_pages",
    "log",
    "log_softmax",
    "logsumexp",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mod",
    "moveaxis",
    "multiply",
    "negative",
    "nn",
    "norm",
    "optim",
    "power",
    "record",
    "relu",
    "reshape",
    "sigmoid",
    "sin",
    "softmax",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "subtract",
    "sum",
    "swapaxes",
    "take",
    "take_along_axis",
    "tanh",
    "transpose",
    "tril",
    "triu",
    "var",
    "where",
]

give_operators()
when_einops_is_imported()
