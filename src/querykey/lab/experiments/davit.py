"""Attention between patches and between channels (document 003, 12.9), by count.

The text asks and gives no answer; the claims here are the orders N^2 C and N C^2 with their
constants. Windows cut the patches into blocks of w x w, groups cut the channels.
"""

from __future__ import annotations

from torch import Tensor, nn

from querykey.attention import attend_channels, attend_windows
from querykey.backends import attend
from querykey.costs import array, cost
from querykey.lab.claim import Claim
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.measurement import Chart, Measurement, exact

SIDE, CHANNELS = 16, 512
PATCHES = SIDE * SIDE
WINDOWS, GROUPS = (4, 8), (4, 8, 16)

CLAIMS = (
    Claim("D8", "(i) between the patches, all channels: 4 N^2 C = {value} FLOPs",
          4 * PATCHES**2 * CHANNELS, of="FLOPs between patches"),
    Claim("D8", "(ii) between the channels, all patches: 4 N C^2 = {value} FLOPs",
          4 * PATCHES * CHANNELS**2, of="FLOPs between channels"),
    Claim("D8", "compared, (ii) costs C / N = {value} times as much", CHANNELS / PATCHES,
          of="channels over patches"),
    *(
        Claim("D8", f"in windows of {w} x {w} patches: 4 N {w * w} C = {{value}} FLOPs",
              4 * PATCHES * w * w * CHANNELS, of=f"FLOPs between patches, windows of {w}")
        for w in WINDOWS
    ),
    *(
        Claim("D8", f"in {g} groups of channels: 4 N C^2 / {g} = {{value}} FLOPs",
              4 * PATCHES * CHANNELS**2 // g, of=f"FLOPs between channels, {g} groups")
        for g in GROUPS
    ),
    Claim("D8", "both kinds need the same maps of queries, keys, values and outputs, 8 N C^2 = "
          "{value} FLOPs", 8 * PATCHES * CHANNELS**2, of="FLOPs of the four maps"),
)  # fmt: skip


class Between(nn.Module):
    """Attention of tokens (batch, patches, channels) with themselves, of one of the two kinds."""

    def __init__(self, window: int = SIDE, groups: int = 0):
        super().__init__()
        self.window, self.groups = window, groups  # groups of channels; 0: between patches

    def forward(self, x: Tensor) -> Tensor:
        """Return as many tokens."""
        if self.groups:
            return attend_channels(x, x, x, groups=self.groups, attend=attend)
        grid = x.unflatten(1, (SIDE, SIDE))[:, None]  # one head
        sides = (self.window, self.window)
        out = attend_windows(grid, grid, grid, window=sides, attend=attend)
        return out[:, 0].flatten(1, 2)


def flops(module: nn.Module) -> int:
    """Return the FLOPs of one image."""
    tokens = array("images", PATCHES, CHANNELS)
    report = cost(module, tokens, backward=False, attention="math")
    return int(report.at(images=1).flops.forward)


def measure(depth: Depth) -> Measurement:
    """Count every kind of attention on 16 x 16 patches of 512 channels."""
    values = {"FLOPs between patches": flops(Between())}
    values["FLOPs between channels"] = flops(Between(groups=1))
    for window in WINDOWS:
        depth.tell(f"windows of {window}")
        values[f"FLOPs between patches, windows of {window}"] = flops(Between(window))
    for groups in GROUPS:
        depth.tell(f"{groups} groups")
        values[f"FLOPs between channels, {groups} groups"] = flops(Between(groups=groups))
    linear = nn.Linear(CHANNELS, CHANNELS, device="meta")
    values["FLOPs of the four maps"] = 4 * flops(linear)
    ratio = values["FLOPs between channels"] / values["FLOPs between patches"]
    sides = (8, 16, 32, 64)
    curves = {
        "between patches": [(n * n, 4 * (n * n) ** 2 * CHANNELS) for n in sides],
        "windows of 4": [(n * n, 4 * n * n * 16 * CHANNELS) for n in sides],
        "between channels": [(n * n, 4 * n * n * CHANNELS**2) for n in sides],
        "8 groups of channels": [(n * n, 4 * n * n * CHANNELS**2 // 8) for n in sides],
    }
    return Measurement(
        {name: exact(value) for name, value in values.items()}
        | {"channels over patches": exact(ratio)},
        {"flops": Chart("FLOPs of attention, 512 channels", "patches", "FLOPs", curves, True)},
    )


EXPERIMENT = Experiment(
    "davit", "What does attention between channels cost beside attention between patches?",
    CLAIMS, measure,
)  # fmt: skip
