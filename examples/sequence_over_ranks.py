"""One sequence over many processes: kernel attention exchanges sums, whose size never changes.

torchrun --standalone --nproc-per-node 4 examples/sequence_over_ranks.py
"""

import os

import torch
import torch.distributed as dist

import querykey as qk
from querykey.backends import ranks

TOKENS, WIDTH = 250, 16  # tokens of each rank
QUADRATIC = qk.Kernel(qk.Quadratic(), scale=WIDTH**-0.5)


def main() -> None:
    torch.manual_seed(0)  # the same whole sequence on every rank, to cut and to compare
    rank, count = dist.get_rank(), dist.get_world_size()
    q, k, v = (torch.randn(2, count * TOKENS, WIDTH, dtype=torch.float64) for _ in range(3))
    decay = -torch.rand(2, count * TOKENS, dtype=torch.float64) / 100
    mine = slice(rank * TOKENS, (rank + 1) * TOKENS)
    part = [x[:, mine].clone().requires_grad_() for x in (q, k, v, decay)]

    out = ranks.attend(*part[:3], mechanism=QUADRATIC, mask=qk.Causal(), decay=part[3])
    out.square().sum().backward()  # every rank calls backward, for gradients are exchanged too

    whole = [x.requires_grad_() for x in (q, k, v, decay)]
    expected = qk.attend(*whole[:3], mechanism=QUADRATIC, mask=qk.Causal(), decay=whole[3])
    expected.square().sum().backward()
    difference = float((out - expected[:, mine]).detach().abs().max())
    gradients = max(
        float((ours.grad - theirs.grad[:, mine]).abs().max())
        for ours, theirs in zip(part, whole, strict=True)
    )
    print(
        f"rank {rank} of {count}: outputs differ by {difference:.1e} from those of one process, "
        f"gradients by {gradients:.1e}"
    )
    assert max(difference, gradients) < 1e-9


if __name__ == "__main__":
    if "RANK" in os.environ:  # set by torchrun
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    main()
    dist.destroy_process_group()
