"""The same numbers on every array library, and NumPy alone where NumPy is given."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import querykey as qk
from querykey.attention.biases import ALiBi, Buckets
from querykey.attention.decoding.empty_state import empty_state
from querykey.attention.features import EluPlusOne, Polynomial, Quadratic, RandomFeatures, Taylor
from querykey.attention.masks import Causal, Documents, Padding, Window
from querykey.attention.mechanisms import Argmax, Kernel, Softmax
from querykey.attention.positions import Rotary
from querykey.attention.reference import attend

rng = np.random.default_rng(0)
Q, K, V = (rng.standard_normal((2, heads, 7, 5)) * 0.5 for heads in (4, 2, 2))
MASK = (
    Causal()
    & Window(4)
    & Padding(np.arange(7) < np.array([[7], [5]]))
    & Documents(np.array([[0, 0, 0, 1, 1, 1, 1]] * 2))
)
MECHANISMS = [
    Softmax(),
    Argmax(),
    Kernel(Quadratic()),
    Kernel(Polynomial(4)),
    Kernel(EluPlusOne()),
    Kernel(Taylor(2)),
    Kernel(RandomFeatures(6)),
]

ALONE = """
import sys
import numpy as np
import querykey as qk
from querykey.attention import grids, heads, positions, reference
from querykey.attention.decoding.empty_state import empty_state
from querykey.attention.biases import ALiBi
from querykey.attention.masks import Causal, Padding
from querykey.attention.mechanisms import Softmax

x = np.zeros((1, 1, 3, 2))
mask = Causal() & Padding(np.ones((1, 3), dtype=bool))
reference.attend(x, x, x, mask=mask, bias=ALiBi(1))
memory = empty_state(Softmax(), kv_heads=1, key_dim=2, value_dim=2)
qk.extend(x, x, x, memory, real=np.array([[1, 0, 1]]))
grids.attend_windows(x[..., None, :], x[..., None, :], x[..., None, :], window=(3, 1), shift=(1, 0))
heavy = {"torch", "jax", "sympy", "transformers", "matplotlib", "einops"} & set(sys.modules)
assert not heavy, heavy
"""


def test_numpy_input_loads_numpy_alone():
    subprocess.run([sys.executable, "-c", ALONE], check=True)


@pytest.fixture
def jnp():
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        yield pytest.importorskip("jax.numpy")


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_jax_gives_the_same_values_and_gradients(jnp, mechanism):
    import jax

    def loss(q, k, v):
        return (attend(q, k, v, mechanism=mechanism, mask=MASK) ** 2).sum()

    arrays = [jnp.asarray(x) for x in (Q, K, V)]
    out = attend(*arrays, mechanism=mechanism, mask=MASK)
    ours = attend(Q, K, V, mechanism=mechanism, mask=MASK)
    np.testing.assert_allclose(np.asarray(out), ours, rtol=0, atol=1e-12)
    tensors = [torch.tensor(x, requires_grad=True) for x in (Q, K, V)]
    loss(*tensors).backward()
    for found in (jax.grad(loss, (0, 1, 2))(*arrays), jax.jit(jax.grad(loss, (0, 1, 2)))(*arrays)):
        for a, b in zip(found, tensors, strict=True):
            np.testing.assert_allclose(np.asarray(a), b.grad.numpy(), rtol=0, atol=1e-11)


@pytest.mark.slow
def test_jax_has_biases_rotations_and_states(jnp):
    arrays = [jnp.asarray(x) for x in (Q, K, V)]
    for bias in (ALiBi(4), Buckets(jnp.asarray(rng.standard_normal((8, 4))))):
        plain = Buckets(np.asarray(bias.table)) if isinstance(bias, Buckets) else bias
        ours = attend(Q, K, V, bias=plain)
        np.testing.assert_allclose(np.asarray(attend(*arrays, bias=bias)), ours, atol=1e-12)
    turned = Rotary(width=4)(arrays[0], jnp.arange(7))
    np.testing.assert_allclose(np.asarray(turned), Rotary(width=4)(Q, np.arange(7)), atol=1e-12)
    real = np.array([[1, 1, 0, 1, 1, 1, 1], [0, 0, 1, 1, 0, 1, 1]])
    for mechanism in (Softmax(), Kernel(Quadratic())):
        for mask in (Causal(), Causal() & Window(3)):
            outs = []
            for q, k, v in ((Q, K, V), arrays):
                state = empty_state(mechanism, mask, 2, kv_heads=2, key_dim=5, value_dim=5)
                first, state = qk.extend(q, k, v, state, real=real)
                second, state = qk.extend(q, k, v, state)
                outs.append(np.asarray(first + second))
            np.testing.assert_allclose(outs[1], outs[0], atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", [Softmax(), Kernel(Quadratic()), Argmax()], ids=str)
def test_ag_gives_the_same_values_and_gradients(mechanism):
    ag = pytest.importorskip("querykey.ag")
    arrays = [ag.Tensor(x) for x in (Q, K, V)]
    out = attend(*arrays, mechanism=mechanism, mask=MASK)
    (out * out).sum().backward()
    tensors = [torch.tensor(x, requires_grad=True) for x in (Q, K, V)]
    theirs = attend(*tensors, mechanism=mechanism, mask=MASK)
    (theirs * theirs).sum().backward()
    np.testing.assert_allclose(np.asarray(out), theirs.detach(), rtol=0, atol=1e-12)
    for a, b in zip(arrays, tensors, strict=True):
        np.testing.assert_allclose(np.asarray(a.grad), b.grad, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_torch_compile_takes_the_reference_whole(mechanism):
    """Grouped heads, every kind of mask, a bias and rotations, in one graph."""
    bias = ALiBi(4) if isinstance(mechanism, Softmax) else None

    def function(q, k, v, real):
        q, k = Rotary(width=4)(q, torch.arange(7)), Rotary(width=4)(k, torch.arange(7))
        return attend(q, k, v, mechanism=mechanism, mask=MASK & Padding(real), bias=bias)

    arrays = [torch.tensor(x) for x in (Q, K, V)] + [torch.tensor([[1] * 7, [1] * 4 + [0] * 3])]
    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*arrays), function(*arrays), rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("features", [m.features for m in MECHANISMS[2:]], ids=str)
def test_torch_compile_takes_the_feature_maps_whole(features):
    torch.compiler.reset()
    compiled = torch.compile(lambda x: features(x), fullgraph=True, backend="eager")
    x = torch.tensor(Q)
    torch.testing.assert_close(compiled(x), features(x), rtol=0, atol=1e-12)
