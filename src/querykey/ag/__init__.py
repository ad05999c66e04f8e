"""A reverse-mode engine over NumPy, for those who want to see every derivative.

    import querykey.ag as ag
    w = ag.Tensor(np.random.randn(3, 3), label="w")
    loss = ag.sum(ag.tanh(x @ w))
    loss.backward()
    w.grad

Read tensor.py first, which has the graph and the walk, then primitives.py, which has every
operation of a network with its derivative. What is in extras/ can be left out.

A Tensor that is changed in place before backward is noticed. A plain array beside one is read where
it lies, and not watched: do not reuse its memory before backward.
"""

from querykey.ag import nn, optim
from querykey.ag.division import divide, softmax
from querykey.ag.draw import Drawing, draw
from querykey.ag.extras import install, keep_pages
from querykey.ag.functions import (
    astype,
    broadcast_to,
    clip,
    concatenate,
    einsum,
    expand_dims,
    moveaxis,
    split,
    squeeze,
    stack,
    swapaxes,
    take,
    take_along_axis,
    tril,
    triu,
    where,
)
from querykey.ag.gradcheck import gradcheck
from querykey.ag.operators import give_operators, record
from querykey.ag.primitives import (
    abs,
    add,
    cos,
    erf,
    exp,
    gelu,
    getitem,
    log,
    matmul,
    maximum,
    mean,
    minimum,
    mod,
    multiply,
    negative,
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
)
from querykey.ag.reductions import (
    argmax,
    cumsum,
    log_softmax,
    logsumexp,
    max,
    min,
    norm,
    prod,
    std,
    var,
)
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
    "prod",
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
    "std",
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
Tensor.functions.update({name: globals()[name] for name in __all__})  # for np.exp(x) and others
install()
