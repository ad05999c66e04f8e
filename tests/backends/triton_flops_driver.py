"""Counts the products of the GPU kernels in Triton's interpreter, beside what the formulas say.

As `triton_driver`: needs TRITON_INTERPRET=1, in a process of its own. The last line printed is
JSON: for each case what was multiplied, and what the registered formula says, forward and backward.
"""

import json

import torch
from torch.utils.flop_counter import flop_registry
from triton.runtime.interpreter import InterpreterBuilder

from querykey.backends.triton import plans
from querykey.backends.triton.intervals import intervals

OPS = torch.ops.querykey
LANES, GROUP, SIZE, WIDTH, CHUNK, TILE = 2, 2, 16, 32, 32, 16
NUMBERS = [0.3, 1.0, 2.0, 1.0]
# Queries, keys, whether keys are summed up, causal order; tiles and chunks are whole.
CASES = {
    "every pair": (32, 48, False, False),
    "sums of all keys": (64, 96, True, False),
    "causal sums": (96, 96, True, True),
}


class Products:
    """Adds up 2 m n k over the products within a kernel."""

    flops = 0

    def __enter__(self):
        self.kept = InterpreterBuilder.create_dot

        def create_dot(builder, a, b, *rest):
            self.flops += 2 * a.data.shape[0] * a.data.shape[1] * b.data.shape[1]
            return self.kept(builder, a, b, *rest)

        InterpreterBuilder.create_dot = create_dot
        return self

    def __exit__(self, *_):
        InterpreterBuilder.create_dot = self.kept


def beside(op, *args):
    """Return what an operator multiplied, what its formula says, and its results."""
    with Products() as ran:
        found = op.default(*args)
    return ran.flops, flop_registry[op](*args, out_val=found), found


def run(queries, keys, far, causal):
    near = 0 if far else 1000
    launch = (plans.Launch(TILE, TILE, 4, 1),) * 2
    plans.PLANS[SIZE] = plans.Plan(CHUNK, (near, near), launch, launch, launch)
    q = torch.randn(LANES, GROUP, queries, SIZE)
    k, v = torch.randn(LANES, keys, SIZE), torch.randn(LANES, keys, WIDTH)
    *forward, kept = beside(OPS.triton_forward, q, k, v, None, None, NUMBERS, causal, True)
    out, more, inverse, *sums = kept
    args = (torch.ones_like(out), out, more, inverse, q, k, v, *sums, None, NUMBERS, causal)
    *backward, _ = beside(OPS.triton_backward, *args)
    return forward, backward


def run_documents(causal):
    """One document that holds all tokens; causal, it goes through sums."""
    near = 0 if causal else 1000
    launch = (plans.Launch(TILE, TILE, 4, 1),) * 2
    plans.PLANS[SIZE] = plans.Plan(CHUNK, (near, near), launch, launch, launch)
    q = torch.randn(LANES, GROUP, 96, SIZE)
    k, v = torch.randn(LANES, 96, SIZE), torch.randn(LANES, 96, WIDTH)
    found = intervals(torch.zeros(1, 96, dtype=torch.long), None, causal)
    how = (*found, NUMBERS, causal)
    *forward, kept = beside(OPS.triton_documents_forward, q, k, v, *how, True)
    out, residue, inverse, *sums = kept
    args = (torch.ones_like(out), out, residue, inverse, q, k, v, *sums, *how)
    *backward, _ = beside(OPS.triton_documents_backward, *args)
    return forward, backward


if __name__ == "__main__":
    found = {name: run(*case) for name, case in CASES.items()}
    found |= {"one document": run_documents(False), "one causal document": run_documents(True)}
    print(json.dumps(found))
