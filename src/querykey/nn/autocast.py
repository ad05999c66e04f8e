"""What autocast casts, cast once for all the layers that read it."""

from __future__ import annotations

import torch
from torch import Tensor


def cast_once(x: Tensor) -> Tensor:
    """Return x in the precision that autocast gives to matrix products.

    Layers that share x would else cast it once each, and each one's gradient back again.
    """
    kind = x.device.type
    if x.dtype != torch.float32 or not torch.amp.is_autocast_available(kind):
        return x
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x
