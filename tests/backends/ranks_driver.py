"""One rank of a process group that attends to sequences spread over all ranks, case after case.

Started as `python -m tests.backends.ranks_driver FOLDER RANK RANKS`. It writes its outputs and
gradients, the bytes that went through collectives, and the refusals to FOLDER/RANK.pt.
"""

import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from querykey.attention import (
    FULL,
    Argmax,
    Causal,
    EluPlusOne,
    FeatureMap,
    Kernel,
    Padding,
    Polynomial,
    Quadratic,
    RandomFeatures,
    Softmax,
    Taylor,
    Window,
)
from querykey.backends import ranks

QUADRATIC, ELU = Kernel(Quadratic(), scale=0.7), Kernel(EluPlusOne())
TAYLOR = Kernel(Taylor(), scale=0.7)


@dataclass(frozen=True)
class Halves(FeatureMap):
    """phi(x) = (x^2 + 1) / 2 of every number: a map that no backend knows."""

    def width(self, key_dim):
        return key_dim

    def __call__(self, x):
        return (x * x + 1) / 2


@dataclass(frozen=True)
class Case:
    """A whole sequence of `ranks * tokens` tokens, and what is to be computed of it."""

    mechanism: Any
    causal: bool = True
    tokens: int = 7  # of each rank
    sizes: tuple[int, int, int, int, int] = (2, 4, 2, 5, 3)  # batch, heads, kv_heads, D, M
    padding: bool = False
    decay: bool = False
    dtype: torch.dtype = torch.float64

    def draw(self, count: int) -> dict[str, torch.Tensor]:
        """Return q, k, v, a gradient of the output, and decay and real where there are any."""
        generator = torch.Generator().manual_seed(0)
        batch, heads, kv_heads, key_dim, value_dim = self.sizes
        total = count * self.tokens

        def normal(*shape):
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        # No batch, then no heads, where the sizes are 0.
        outer = (batch,) if batch else ()
        q_axes, k_axes = ((*outer, n) if n else outer for n in (heads, kv_heads))
        arrays = {
            "q": normal(*q_axes, total, key_dim) / 2,
            "k": normal(*k_axes, total, key_dim) / 2,
            "v": normal(*k_axes, total, value_dim),
            "gradient": normal(*q_axes, total, value_dim),
        }
        if self.decay:
            # Gates that leave about a fifth of the sums before a rank, however many its tokens.
            arrays["decay"] = -normal(*k_axes, total).abs() * 2 / max(self.tokens, 2)
        arrays = {name: array.to(self.dtype) for name, array in arrays.items()}
        if self.padding:
            arrays["real"] = self._real(normal(*outer, total), arrays)
        return arrays

    def _real(self, numbers: torch.Tensor, arrays: dict[str, torch.Tensor]) -> torch.Tensor:
        """Hide some tokens, all of the first rank and more among them, and spoil what they hold."""
        real = numbers > -0.5
        real[..., : self.tokens + 2] = False
        # Queries that see nothing may hold anything: those before the first real key, or without
        # Causal() those of a row without one.
        if self.causal:
            arrays["q"][..., : self.tokens + 2, :] = torch.nan
        elif self.sizes[0]:
            real[0], arrays["q"][0] = False, torch.nan
        hidden = ~real[..., None, :] if self.sizes[1] else ~real
        arrays["k"] = arrays["k"].masked_fill(hidden[..., None], torch.nan)
        arrays["v"] = arrays["v"].masked_fill(hidden[..., None], torch.inf)
        if self.decay:
            arrays["decay"] = arrays["decay"].masked_fill(hidden, torch.nan)
        return real

    def run(self, attend: Any, arrays: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the output and the gradients of the call that the arrays stand for."""
        names = [name for name in ("q", "k", "v", "decay") if name in arrays]
        leaves = {name: arrays[name].clone().requires_grad_() for name in names}
        mask = Causal() if self.causal else FULL
        if "real" in arrays:
            mask = mask & Padding(arrays["real"])
        out = attend(**leaves, mechanism=self.mechanism, mask=mask)
        gradients = torch.autograd.grad(out, [*leaves.values()], arrays["gradient"])
        return {"out": out.detach(), **dict(zip(names, gradients, strict=True))}


SMALL = (1, 1, 1, 3, 2)
CASES = {
    "quadratic": Case(QUADRATIC),
    "quadratic, all keys": Case(QUADRATIC, causal=False),
    "quadratic, decay": Case(QUADRATIC, decay=True),
    "quadratic, padding": Case(QUADRATIC, padding=True),
    "quadratic, all keys, padding": Case(QUADRATIC, causal=False, padding=True),
    "quadratic, decay, padding": Case(QUADRATIC, decay=True, padding=True),
    "quadratic, chunks, decay": Case(
        QUADRATIC, tokens=301, sizes=(1, 2, 1, 5, 3), padding=True, decay=True
    ),
    "quadratic, one token, decay": Case(QUADRATIC, tokens=1, sizes=SMALL, decay=True),
    "quadratic, no heads, decay": Case(QUADRATIC, sizes=(0, 0, 0, 5, 3), decay=True),
    "quadratic, no heads, padding": Case(QUADRATIC, sizes=(0, 0, 0, 5, 3), padding=True),
    "quadratic, no batch": Case(QUADRATIC, sizes=(0, 6, 3, 4, 5), padding=True, decay=True),
    "elu": Case(ELU, tokens=13),
    "elu, all keys": Case(ELU, causal=False, tokens=13),
    "elu, decay": Case(ELU, tokens=131, sizes=(3, 3, 3, 7, 2), decay=True),
    "elu, padding": Case(ELU, padding=True),
    "degree 4, decay": Case(Kernel(Polynomial(4, bias=0.3)), sizes=SMALL, decay=True),
    "random, decay": Case(Kernel(RandomFeatures(11, seed=3)), decay=True),
    "a map of one's own, decay": Case(Kernel(Halves()), decay=True, padding=True),
    "softmax": Case(Softmax(), tokens=9),
    "softmax, all keys": Case(Softmax(), causal=False),
    "softmax, padding": Case(Softmax(), padding=True),
    "softmax, all keys, padding": Case(Softmax(), causal=False, padding=True),
    "softmax, softcap": Case(Softmax(softcap=2.0), tokens=1),
    "softmax, no heads": Case(Softmax(), sizes=(0, 0, 0, 5, 3), padding=True),
    "argmax": Case(Argmax()),
}
LOW = {
    # Similarities that are never near 0: gradients of a query that sees one key are differences
    # divided by its similarity, and would measure that.
    "taylor, float32": Case(TAYLOR, tokens=65, padding=True, dtype=torch.float32),
    "quadratic, bfloat16": Case(QUADRATIC, tokens=65, dtype=torch.bfloat16),
    "softmax, bfloat16": Case(Softmax(), tokens=65, dtype=torch.bfloat16),
}
LOW_DECAY = Case(QUADRATIC, tokens=65, decay=True, dtype=torch.float32)


def part(arrays: dict[str, torch.Tensor], rank: int, tokens: int) -> dict[str, torch.Tensor]:
    """Return one rank's tokens of every array."""
    axes = {"decay": -1, "real": -1}
    return {
        name: array.narrow(axes.get(name, -2), rank * tokens, tokens).contiguous()
        for name, array in arrays.items()
    }


class Collectives(TorchDispatchMode):
    """Counts the bytes of tensors that collectives are given to send, and the calls."""

    def __init__(self):
        super().__init__()
        self.bytes, self.calls = 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            # Outputs come first in every collective's schema, and inputs second.
            sent = args[1] if isinstance(args[1], (list, tuple)) else [args[1]]
            self.bytes += sum(x.numel() * x.element_size() for x in sent)
            self.calls.append(func.name())
        return func(*args, **(kwargs or {}))


def traffic(case: Case, rank: int, count: int) -> dict[str, Any]:
    """Return the bytes that this rank sends for a case, forward and backward, and by what."""
    with Collectives() as counted:
        case.run(ranks.attend, part(case.draw(count), rank, case.tokens))
    return {"bytes": counted.bytes, "calls": counted.calls}


def message(function: Any) -> str:
    """Return the kind and the text of the error that a call raises."""
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def refusals(rank: int, count: int) -> dict[str, str]:
    """Return what this rank is told when parts do not fit, or nobody can serve the call."""
    causal = {"mask": Causal()}

    def tensors(tokens=3, dtype=torch.float64):
        return [torch.ones(2, tokens, 4, dtype=dtype) for _ in range(3)]

    odd = rank == 2  # the rank that differs from the others
    wrong = -torch.ones(2, 3, dtype=torch.float64)
    wrong[1, 2] = 0.5 if odd else 0.0
    learning = tensors()
    learning[1].requires_grad_(odd)
    apart = dist.new_group([0, 1])
    single = torch.zeros(3, 4)
    calls = {
        "shares": lambda: ranks.attend(*tensors(4 if odd else 3), **causal),
        "dtypes": lambda: ranks.attend(
            *tensors(dtype=torch.float32 if odd else torch.float64), **causal
        ),
        "mechanisms": lambda: ranks.attend(*tensors(), mechanism=ELU if odd else QUADRATIC),
        "decay": lambda: ranks.attend(*tensors(), mechanism=QUADRATIC, decay=wrong, **causal),
        "gradients": lambda: ranks.attend(*learning, **causal),
        "window": lambda: ranks.attend(*tensors(), mask=Causal() & Window(2)),
        "softmax decay": lambda: ranks.attend(*tensors(), decay=wrong, **causal),
        "empty": lambda: ranks.attend(*tensors(0), **causal),
        "numpy": lambda: ranks.attend(*(x.numpy() for x in tensors()), **causal),
        "group": lambda: ranks.attend(single, single, single, group=apart),
    }
    return {name: message(call) for name, call in calls.items()}


def alone(rank: int, case: Case) -> dict[str, torch.Tensor]:
    """Return the results of a case in a group of this rank alone."""
    groups = [dist.new_group([other]) for other in range(dist.get_world_size())]

    def attend(*args, **kwargs):
        return ranks.attend(*args, **kwargs, group=groups[rank])

    return case.run(attend, case.draw(1))


def twice(rank: int, count: int) -> str:
    """Return what a second derivative says."""
    case = CASES["softmax"]
    arrays = part(case.draw(count), rank, case.tokens)
    q, k, v = (arrays[name].requires_grad_() for name in "qkv")
    out = ranks.attend(q, k, v, mask=Causal())
    first = torch.autograd.grad(out.square().sum(), k, create_graph=True)[0]
    return message(first.sum().backward)


def main(folder: Path, rank: int, count: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=count,
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    results: dict[str, Any] = {
        name: case.run(ranks.attend, part(case.draw(count), rank, case.tokens))
        for name, case in (CASES | LOW | {"low decay": LOW_DECAY}).items()
    }
    results["traffic"] = {
        (name, tokens): traffic(Case(mechanism, tokens=tokens, decay=decay), rank, count)
        for name, mechanism, decay in (("kernel", QUADRATIC, True), ("softmax", Softmax(), False))
        for tokens in (8, 64, 512)
    }
    results["alone"] = {name: alone(rank, CASES[name]) for name in ("quadratic, decay", "softmax")}
    results["refusals"] = refusals(rank, count)
    results["twice"] = twice(rank, count)
    # After all refusals the ranks still are in step.
    results["after"] = CASES["elu"].run(
        ranks.attend, part(CASES["elu"].draw(count), rank, CASES["elu"].tokens)
    )
    torch.save(results, folder / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
