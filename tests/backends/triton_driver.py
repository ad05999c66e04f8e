"""Runs the GPU kernels in Triton's interpreter, on the CPU in float32, and prints how far they are.

Needs TRITON_INTERPRET=1 and so a process of its own: kernels are made for the interpreter or not at
all when they are loaded. The last line printed is JSON: for each case the relative errors of the
output and of the gradients of q, k and v, and of the gates where there are any.
"""

import json
import math
import tempfile
import warnings

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from querykey.attention.features import Polynomial, Quadratic, Taylor
from querykey.attention.mechanisms import Kernel
from querykey.backends.triton import linear, plans
from querykey.backends.triton.intervals import intervals

QUADRATIC = (Quadratic(), lambda d: (d + 1) ** 2)
TAYLOR = (Taylor(2), lambda d: 1 + d + d * d / 2)
POLYNOMIAL = (Polynomial(2, bias=0.5), lambda d: (d + 0.5) ** 2)
# Map, batch, heads, key heads, queries, keys, key and value size, causal, side of the padding.
CASES = {
    "one token": (QUADRATIC, 1, 2, 2, 1, 1, 16, 16, True, None),
    "one chunk": (TAYLOR, 1, 1, 1, 33, 33, 16, 32, True, None),
    "three rows, two by two": (QUADRATIC, 1, 6, 3, 37, 37, 16, 16, True, None),
    "chunks, groups, left padding": (QUADRATIC, 2, 2, 1, 70, 70, 16, 16, True, "left"),
    "chunks, right padding": (TAYLOR, 1, 1, 1, 97, 97, 16, 16, True, "right"),
    "whole chunks, wider keys": (POLYNOMIAL, 1, 1, 1, 64, 64, 32, 16, True, None),
    "wide": (QUADRATIC, 1, 1, 1, 49, 49, 64, 16, True, None),
    "widest": (TAYLOR, 1, 2, 1, 21, 21, 100, 16, True, None),
    "widest, chunks": (TAYLOR, 1, 1, 1, 41, 41, 100, 16, True, None),
    "sizes between": (QUADRATIC, 1, 2, 2, 51, 51, 13, 5, True, "right"),
    "all keys, many": (QUADRATIC, 1, 2, 1, 60, 60, 16, 32, False, "left"),
    "all keys, few queries": (TAYLOR, 1, 2, 2, 5, 53, 16, 16, False, None),
    "all keys, one chunk": (POLYNOMIAL, 2, 1, 1, 20, 40, 16, 16, False, "right"),
}  # fmt: skip
# The same, with a gate at every token: weak ones, and some that leave nothing.
GATED = {
    "gates, one token": (QUADRATIC, 1, 2, 2, 1, 1, 16, 16, True, None),
    "gates, pairs, left padding": (TAYLOR, 2, 2, 1, 38, 38, 16, 32, True, "left"),
    "gates, chunks, groups": (QUADRATIC, 1, 2, 1, 101, 101, 16, 16, True, None),
    "gates, chunks, right padding": (POLYNOMIAL, 2, 1, 1, 96, 96, 13, 5, True, "right"),
    "gates, wider keys": (TAYLOR, 1, 1, 1, 67, 67, 32, 16, True, None),
}  # fmt: skip
SCALE = 0.3
UTILS = ("test_schema", "test_faketensor")
# Map, batch, heads, key heads, tokens, key and value size, causal, padded; how ids follow.
DOCUMENTS = {
    "documents, causal": (QUADRATIC, 2, 4, 2, 90, 16, 32, True, False, "packed"),
    "documents, padded": (TAYLOR, 2, 2, 1, 77, 13, 5, True, True, "packed"),
    "documents, all keys, padded": (POLYNOMIAL, 2, 1, 1, 65, 16, 16, False, True, "packed"),
    "documents, mixed": (QUADRATIC, 1, 2, 2, 70, 16, 16, True, True, "mixed"),
    "documents, mixed, all keys": (TAYLOR, 1, 1, 1, 33, 32, 16, False, False, "mixed"),
    "one document": (QUADRATIC, 1, 1, 1, 50, 16, 16, True, False, "one"),
    # Of these some go through sums, across one chunk's border or more, and some do not.
    "long documents": (QUADRATIC, 2, 1, 1, 120, 16, 32, True, False, "long"),
    "long documents, padded": (POLYNOMIAL, 1, 2, 1, 115, 13, 16, True, True, "long"),
    "long documents, mixed": (TAYLOR, 2, 1, 1, 101, 16, 16, True, True, "two"),
    "long documents, all keys": (TAYLOR, 1, 1, 1, 109, 16, 16, False, False, "long"),
}


def draw_documents(case):
    """Return the kernel, its similarity, inputs, a gradient, causal, real tokens and ids."""
    batch, tokens = case[1], case[4]
    *_, causal, padded, kind = case
    kernel, similarity, inputs, grad, *_ = draw((*case[:4], tokens, *case[4:7], causal, None))
    made = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 4, (batch, tokens), generator=made)
    if kind == "packed":  # runs of 1 to 31 tokens, ids that do not rise
        ends = torch.randint(1, 32, (batch, tokens), generator=made).cumsum(1)
        ids = (torch.arange(tokens)[:, None] >= ends[:, None]).sum(-1) * 7 % 5
    elif kind == "one":
        ids = torch.zeros_like(ids)
    elif kind == "long":  # 13, 47, 41, 3 and the rest; the other way round in a second row
        ends = torch.tensor([[13, 60, 101, 104], [tokens - 104, tokens - 101, 99, tokens - 13]])
        ids = (torch.arange(tokens)[:, None] >= ends[:batch, None]).sum(-1)
    elif kind == "two":
        ids = ids % 2 * torch.tensor([[1], [0]])[:batch]  # a second row stays where it is
    real = torch.rand(batch, tokens, generator=made) > 0.3 if padded else None
    return kernel, similarity, inputs, grad, causal, real, ids


def draw_gates(k, seed=3):
    """Return logarithms of gates for keys (batch, kv_heads, N, D)."""
    made = torch.Generator().manual_seed(seed)
    decay = -(torch.randn(k.shape[:3], generator=made) ** 2) / 20
    strong = torch.rand(k.shape[:3], generator=made) < 0.07
    return torch.where(strong, 3000 * decay, decay)


def left_of(decay, real):
    """exp(decay[j + 1] + ... + decay[i]) for all i and j <= i, (batch, kv_heads, N, N)."""
    if real is not None:
        decay = torch.where(real[:, None], decay, 0)
    place = torch.arange(decay.shape[-1])
    rows = [
        torch.where((place > j) & (place <= place[:, None]), decay[..., None, :], 0).sum(-1)
        for j in place
    ]
    return torch.stack(rows, -1).exp()


def quadratic_form(q, k, v, similarity, causal, real, ids=None, decay=None):
    """sum_j w_ij v_j / sum_j w_ij over the keys j that query i sees."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    w = similarity(SCALE * (q @ k.mT))
    if causal:
        w = w.tril()
    if decay is not None:
        w = w * left_of(decay, real).repeat_interleave(q.shape[1] // decay.shape[1], 1)
    if real is not None:
        w = torch.where(real[:, None, None, :], w, 0.0)
    if ids is not None:
        w = torch.where((ids[:, :, None] == ids[:, None, :])[:, None], w, 0.0)
    z = w.sum(-1, keepdim=True)
    return torch.where(z == 0, 0.0, w @ v / torch.where(z == 0, 1.0, z))


def results(attend, inputs, grad):
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = attend(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.to(out.dtype))]


def draw(case):
    (features, similarity), batch, heads, kv_heads, queries, keys, key_dim, value_dim, *rest = case
    made = torch.Generator().manual_seed(0)
    shapes = [(heads, queries, key_dim), (kv_heads, keys, key_dim), (kv_heads, keys, value_dim)]
    inputs = [torch.randn(batch, *shape, generator=made) for shape in shapes]
    grad = torch.randn(batch, heads, queries, value_dim, generator=made)
    causal, padding = rest
    real = None
    if padding:
        edge = torch.tensor([[9], [20]])[:batch]
        real = torch.arange(keys) >= edge if padding == "left" else torch.arange(keys) < keys - edge
    return Kernel(features, SCALE), similarity, inputs, grad, causal, real


def errors(found, wanted):
    # A gradient that is 0 in truth, as with one key, is held against the size of dv.
    sizes = [float(x.norm()) for x in wanted]
    of_values = sizes[:4][-1]
    sizes = [size if size > 1e-9 * of_values else of_values for size in sizes]
    return [float((a - b).norm()) / size for a, b, size in zip(found, wanted, sizes, strict=True)]


def run(kernel, similarity, inputs, grad, causal, real, ids=None):
    wanted = results(
        lambda *x: quadratic_form(*x, similarity, causal, real, ids),
        [x.double() for x in inputs],
        grad,
    )
    if real is not None:  # padding may hold anything
        for x in inputs[1:]:
            x.masked_fill_(~real[:, None, :, None], math.nan)

    def attend(*x):
        return linear.attend(*x, kernel, causal=causal, real=real, ids=ids)

    return errors(results(attend, inputs, grad), wanted)


def run_gated(case):
    """Errors of the output and of the gradients of q, k, v and decay."""
    kernel, similarity, inputs, grad, _, real = draw(case)
    inputs = [*inputs, draw_gates(inputs[1])]
    wanted = results(
        lambda q, k, v, decay: quadratic_form(q, k, v, similarity, True, real, decay=decay),
        [x.double() for x in inputs],
        grad,
    )
    if real is not None:
        for x in inputs[1:3]:
            x.masked_fill_(~real[:, None, :, None], math.nan)
        inputs[3].masked_fill_(~real[:, None], math.nan)

    def attend(q, k, v, decay):
        return linear.attend(q, k, v, kernel, causal=True, real=real, decay=decay)

    return errors(results(attend, inputs, grad), wanted)


def run_vanishing(case, by_documents):
    """Errors of the output and of dv where all that a query sees nearly vanishes beside padding."""
    kernel, similarity, inputs, grad, causal, real = draw(case)
    first = real.int().argmax(-1)[:, None, None, None]
    q, k = inputs[0], inputs[1].repeat_interleave(case[2] // case[3], 1)
    k = k.gather(2, first.expand(*k.shape[:2], 1, k.shape[-1]))
    alone = -0.999 / SCALE * k / (k * k).sum(-1, keepdim=True)  # a similarity of 1e-6
    q.scatter_(2, first.expand_as(alone), alone)
    ids = torch.zeros_like(real, dtype=torch.long) if by_documents else None
    out, _, _, dv = run(kernel, similarity, inputs, grad, causal, real, ids)
    return [out, dv]


def run_wrapped(wrap):
    """A plain case through torch.compile or a checkpoint, against the same without it."""
    kernel, _, inputs, grad, causal, _ = draw(CASES["whole chunks, wider keys"])

    def attend(*x):
        return linear.attend(*x, kernel, causal=causal)

    return errors(results(wrap(attend), inputs, grad), results(attend, inputs, grad))


def run_watched():
    """A plain call against the same under a FLOP counter, which must see the operators."""
    kernel, _, inputs, grad, causal, _ = draw(CASES["chunks, groups, left padding"])

    def attend(*x):
        return linear.attend(*x, kernel, causal=causal)

    with FlopCounterMode(display=False) as counter:
        watched = results(attend, inputs, grad)
    names = {str(op) for op in counter.get_flop_counts()["Global"]}
    assert names == {"querykey.triton_forward", "querykey.triton_backward"}, names
    return errors(results(attend, inputs, grad), watched)


class Layer(torch.nn.Module):
    """Attention with weights of its own, for what wraps modules."""

    def __init__(self, kernel):
        super().__init__()
        torch.manual_seed(0)
        self.kernel, self.mix = kernel, torch.nn.Linear(16, 16)

    def forward(self, q, k, v):
        return linear.attend(self.mix(q), self.mix(k), v, self.kernel, causal=True)


def run_distributed():
    """One rank of DDP: its gradients against those of the plain module."""
    kernel, _, inputs, grad, *_ = draw(CASES["one chunk"])
    layer, found = Layer(kernel), []
    with tempfile.TemporaryDirectory() as folder:
        distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1
        )
        for module in (DistributedDataParallel(layer), layer):
            layer.zero_grad()
            module(*inputs).backward(grad)
            found.append([p.grad.clone() for p in layer.parameters()])
        distributed.destroy_process_group()
    return errors(*found)


def run_second(ids):
    """1 where a second derivative came back, as it must not: the kernels have none."""
    kernel, _, inputs, _, causal, _ = draw(CASES["one chunk"])
    leaves = [x.requires_grad_() for x in inputs]
    out = linear.attend(*leaves, kernel, causal=causal, ids=ids)
    (first,) = torch.autograd.grad(out.square().sum(), leaves[0], create_graph=True)
    try:
        torch.autograd.grad(first.square().sum(), leaves[0])
    except RuntimeError as error:
        return [0.0 if "ask for backend='reference'" in str(error) else 1.0]
    return [1.0]


def run_shapes():
    """What torch is told about the results, against the results: 0 where they are alike."""
    ops = torch.ops.querykey
    for name in ("one chunk", "whole chunks, wider keys", "all keys, many"):
        kernel, _, inputs, _, causal, _ = draw(CASES[name])
        q, k, v = (x.flatten(0, 1) for x in inputs)
        numbers = [SCALE, *kernel.features.coefficients]
        for keep in (True, False):
            gates = draw_gates(k[:, None])[:, 0] if causal else None
            args = (q.view(len(k), -1, *q.shape[1:]), k, v, None, gates, numbers, causal, keep)
            torch.library.opcheck(ops.triton_forward.default, args, test_utils=UTILS)
            kept = ops.triton_forward.default(*args[:-1], True)
            args = (kept[0], *kept[:3], *args[:3], *kept[3:], None, numbers, causal)
            torch.library.opcheck(ops.triton_backward.default, args, test_utils=UTILS)
    for name in ("one document", "documents, mixed, all keys"):
        kernel, _, inputs, _, causal, real, ids = draw_documents(DOCUMENTS[name])
        q, k, v = (x.flatten(0, 1) for x in inputs)
        numbers = [SCALE, *kernel.features.coefficients]
        q, found = q.view(len(k), -1, *q.shape[1:]), intervals(ids, real, causal)
        for keep in (True, False):
            args = (q, k, v, *found, numbers, causal, keep)
            torch.library.opcheck(ops.triton_documents_forward.default, args, test_utils=UTILS)
        kept = ops.triton_documents_forward.default(*args[:-1], True)
        args = (kept[0], *kept[:3], q, k, v, *kept[3:], *found, numbers, causal)
        torch.library.opcheck(ops.triton_documents_backward.default, args, test_utils=UTILS)
    return [0.0]


def run_compiled_documents():
    """Packed documents through torch.compile, against the same without it."""
    kernel, _, inputs, grad, causal, _, ids = draw_documents(DOCUMENTS["one document"])

    def attend(*x):
        return linear.attend(*x, kernel, causal=causal, ids=ids)

    whole = torch.compile(attend, fullgraph=True, backend="aot_eager")
    return errors(results(whole, inputs, grad), results(attend, inputs, grad))


def poison(make):
    """Let what is not written to hold NaN."""

    def poisoned(*args, **options):
        x = make(*args, **options)
        return x.fill_(math.nan) if x.is_floating_point() and x.device.type == "cpu" else x

    return poisoned


def main():
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # 1 / 0 in rows that are not taken
    torch.Tensor.new_empty = poison(torch.Tensor.new_empty)
    torch.empty_like = poison(torch.empty_like)
    launch = plans.Launch(16, 16, 4, 1)
    for size in plans.SIZES:  # chunks of 32 tokens, so that short sequences have several
        plans.PLANS[size] = plans.Plan(32, (40, 40), *[(launch, launch)] * 3)
    plans.CACHE = 10_000  # bytes: two rows of the case named so
    found = {name: run(*draw(case)) for name, case in CASES.items()}
    found |= {name: run_gated(case) for name, case in GATED.items()}
    found |= {name: run(*draw_documents(case)) for name, case in DOCUMENTS.items()}
    padded = CASES["chunks, groups, left padding"]
    found["vanishing, chunks"] = run_vanishing(padded, False)
    found["vanishing, documents"] = run_vanishing(padded, True)
    found["vanishing, pairs"] = run_vanishing((*padded[:4], 35, 35, *padded[6:]), False)
    found["checkpointed"] = run_wrapped(lambda f: lambda *x: checkpoint(f, *x, use_reentrant=False))
    found["compiled whole"] = run_wrapped(
        lambda f: torch.compile(f, fullgraph=True, backend="aot_eager")
    )
    found["documents, compiled whole"] = run_compiled_documents()
    found["distributed"] = run_distributed()
    found["second derivative"] = run_second(None)
    found["second derivative, documents"] = run_second(torch.arange(33)[None] // 9)
    found["shapes"] = run_shapes()
    found["watched"] = run_watched()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
