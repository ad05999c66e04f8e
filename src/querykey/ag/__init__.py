"""A reverse-mode engine over NumPy, for those who want to see every derivative.

import querykey.ag as ag
w = ag.Tensor(np.random.randn(3, 3), label="w")
loss = ag.sum(ag.tanh(x @ w))
loss.backward()
w.grad
"""

from querykey.ag import nn, optim
from querykey.ag.composites import moveaxis, split, stack, swapaxes, take, take_along_axis
from querykey.ag.draw import Drawing, draw
from querykey.ag.einsum import einsum
from querykey.ag.gradcheck import gradcheck
from querykey.ag.operators import give_operators
from querykey.ag.pages import keep_pages
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
    divide,
    erf,
    exp,
    expand_dims,
    gelu,
    getitem,
    log,
    log_softmax,
    logsumexp,
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
    softmax,
    sqrt,
    square,
    squeeze,
    subtract,
    sum,
    tanh,
    transpose,
    tril,
    triu,
    var,
    where,
)
from querykey.ag.tensor import Tensor, record
from querykey.ag.with_einops import when_einops_is_imported

give_operators()
when_einops_is_imported()
