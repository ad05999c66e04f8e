"""The same on a GPU, where flex has a backward, and auto takes it for masks that skip blocks."""

import pytest
import torch
from tests.budget import over_budget

import querykey as qk
from querykey.attention import reference

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

T = 333
REAL = torch.arange(T) < torch.tensor([[T - 5], [100]])
IDS = (torch.arange(T) // 50).expand(2, T)
KERNEL = qk.Kernel(qk.Quadratic(), scale=0.2)
SOFT = ["sdpa", "flex"]
CASES = {
    "full": (SOFT, {}),
    "causal": (SOFT, {"mask": qk.Causal()}),
    "window": (SOFT, {"mask": qk.Causal() & qk.Window(40)}),
    "padding": (SOFT, {"mask": qk.Causal() & qk.Padding(REAL)}),
    "left padding": (SOFT, {"mask": qk.Causal() & qk.Padding(~REAL)}),
    "documents": (SOFT, {"mask": qk.Causal() & qk.Documents(IDS)}),
    "alibi": (SOFT, {"mask": qk.Causal(), "bias": qk.ALiBi(4)}),
    "softcap": (["flex"], {"mask": qk.Causal(), "mechanism": qk.Softmax(softcap=5.0)}),
    "kernel": (["chunked"], {"mask": qk.Causal(), "mechanism": KERNEL}),
    "kernel padding": (["chunked"], {"mask": qk.Padding(REAL), "mechanism": KERNEL}),
    "elu": (["chunked"], {"mask": qk.Causal(), "mechanism": qk.Kernel(qk.EluPlusOne())}),
}  # fmt: skip


def gradients(run, q, k, v, grad):
    inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out = run(*inputs)
    return [out, *torch.autograd.grad(out, inputs, grad)]


def on_cuda(spec):
    return spec | (
        {"mask": spec["mask"].on(torch.empty(0, device="cuda"))} if "mask" in spec else {}
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("backend", "name"), [(backend, name) for name, (some, _) in CASES.items() for backend in some]
)
def test_values_and_gradients_are_within_budget(backend, name, dtype):
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    q = torch.randn(2, 4, T, 64, device="cuda", dtype=dtype)
    k, v = (torch.randn(2, 2, T, 64, device="cuda", dtype=dtype) for _ in range(2))
    grad = torch.randn(2, 4, T, 64, device="cuda", dtype=dtype)
    spec = on_cuda(CASES[name][1])
    fast = gradients(lambda *x: qk.attend(*x, backend=backend, **spec), q, k, v, grad)
    low = gradients(lambda *x: reference.attend(*x, **spec), q, k, v, grad)
    exact = gradients(
        lambda *x: reference.attend(*x, **spec), *(x.double() for x in (q, k, v, grad))
    )
    assert over_budget(fast, low, exact) == []


def test_auto_on_a_gpu():
    q, k, v = (torch.randn(1, 4, T, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    assert qk.explain(q, k, v, mask=qk.Causal()).backend == "sdpa"
    assert qk.explain(q, k, v, mask=qk.Causal() & qk.Window(9)).backend == "flex"
    assert qk.explain(q, k, v, mask=qk.Causal(), mechanism=KERNEL).backend == "triton"
    single = [x.float() for x in (q, k, v)]
    assert qk.explain(*single, mask=qk.Causal(), mechanism=KERNEL).backend == "chunked"
