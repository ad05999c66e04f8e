"""How far a fast computation in low precision may be from the truth: taken from the data.

The reference runs in float64 and again in the low precision. The fast version may err at most twice
what that reference errs, plus a rounding step of the computation's largest value (an output may be
a difference of large numbers, and exactly 0).
"""

from collections.abc import Sequence

import torch


def over_budget(
    fast: Sequence[torch.Tensor], low: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]
) -> list[str]:
    """Compare outputs and gradients of one computation; say which err too much, and by how much."""
    largest = max((float(x.detach().abs().max()) for x in exact if x.numel()), default=0.0)
    found = []
    for index, (a, b, c) in enumerate(zip(fast, low, exact, strict=True)):
        if a.shape != c.shape or not torch.isfinite(a).all():
            found.append(f"{index}: shape {tuple(a.shape)}, or not finite")
        elif a.numel():
            a, b, c = (x.detach().double() for x in (a, b, c))
            step = torch.finfo(fast[index].dtype).eps * largest
            error, allowed = float((a - c).abs().max()), 2 * float((b - c).abs().max()) + step
            if error > allowed:
                found.append(f"{index}: errs by {error:.2e}, may err by {allowed:.2e}")
    return found
