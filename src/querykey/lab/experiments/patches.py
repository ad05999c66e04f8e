"""Ways around the quadratic cost of vision transformers: cost and accuracy (document 003, 12.8).

The text asks for ways after its figure 12.15. Here are four, each with a quarter of full
attention's products on a grid of 4 x 4 patches: windows, strided keys, pooled keys, and global
tokens. Costs are counted by `qk.cost`; the same small transformer is trained with each.
"""

from __future__ import annotations

import math
from operator import sub

import torch
from torch import Tensor, nn

from querykey.attention import attend_grid, attend_windows, pooled, strided
from querykey.backends import attend
from querykey.costs import array, cost
from querykey.lab.claim import AtMost, Claim, Equal, Near
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.measurement import Grid, Measured, Measurement, exact, sampled, unmeasured
from querykey.lab.pictures import largest, pictures
from querykey.lab.workers import side_by_side
from querykey.nn import MLP, MLPConfig

SIDE, WIDTH, HEADS, GLOBALS = 4, 32, 2, 2  # the patches of a side, and the transformer's sizes
TWO = (2, 2)  # the sides of a window, a stride, a pool
WAYS = ("full", "windows", "strided keys", "pooled keys", "global tokens")
SHORTER = WAYS[1:]
STEPS = 2000  # of training, with 64 images each
FIXED = ("With a stride that is fixed it costs a fixed share, here a quarter, of full attention: "
         "for N^1 the stride has to grow with the image.")  # fmt: skip
CLAIMS = (
    Claim("D7", "computation expands quadratically with the number of patches N: full attention's "
          "products grow as N^{value}", 2, of="power of N, full", within=Equal(0.01)),
    *(Claim("D7", f"{way} break the quadratic cost: products grow as N^{{value}}", 1,
            of=f"power of N, {way}", within=Equal(0.01), right=FIXED if "keys" in way else "")
      for way in SHORTER),
    *(Claim("D7", f"with 16 patches {way} need {{value}} of full attention's products", 0.25,
            of=f"products over full, 16 patches, {way}", within=Near(0.001)) for way in SHORTER),
    *(Claim("D7", f"trained for 2000 steps on MNIST, with {way} a small transformer is at most "
            "{value} behind one with full attention in accuracy", 0.03,
            of=f"accuracy lost, {way}", within=AtMost(),
            right="Three quarters of the patches are nobody's keys; averages keep some of them."
            if way == "strided keys" else "") for way in SHORTER),
)  # fmt: skip


class WayOfSeeing(nn.Module):
    """Attention of a grid of patches (batch, heads, X, Y, features) with itself, in some way."""

    def __init__(self, way: str, features: int):
        super().__init__()
        self.way = way
        self.tokens = None
        if way == "global tokens":
            self.tokens = nn.Parameter(torch.randn(GLOBALS, features))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return a grid of the queries' size."""
        if self.way == "windows":
            return attend_windows(q, k, v, window=TWO, attend=attend)
        if self.way == "strided keys":
            k, v = strided(k, TWO), strided(v, TWO)
        if self.way == "pooled keys":
            k, v = pooled(k, TWO), pooled(v, TWO)
        if self.tokens is not None:  # they gather from all patches, and patches gather from them
            tokens = self.tokens.expand(*q.shape[:2], -1, -1)[..., None, :]
            k, v = tokens, attend_grid(tokens, k, v, attend=attend)
        return attend_grid(q, k, v, attend=attend)


class GridBlock(nn.Module):
    """A transformer's block over a grid (batch, X, Y, width), norms before."""

    def __init__(self, way: str):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.maps, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attention = WayOfSeeing(way, WIDTH // HEADS)
        self.mlp = MLP(WIDTH, MLPConfig(4 * WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Return a grid of the same size."""
        heads = self.maps(self.norms[0](x)).unflatten(-1, (3, HEADS, -1))
        q, k, v = heads.movedim(-2, 1).unbind(-2)
        x = x + self.out(self.attention(q, k, v).movedim(1, -2).flatten(-2))
        return x + self.mlp(self.norms[1](x))


class GridTransformer(nn.Module):
    """Images (batch, 1, side, side) cut into 4 x 4 patches, two blocks, scores of ten classes."""

    def __init__(self, way: str, image: int):
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, image // SIDE, stride=image // SIDE)
        self.positions = nn.Parameter(0.1 * torch.randn(SIDE, SIDE, WIDTH))
        self.blocks = nn.Sequential(GridBlock(way), GridBlock(way))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores, from the mean over patches."""
        grid = self.patches(images).movedim(1, -1) + self.positions
        return self.head(self.norm(self.blocks(grid)).mean((1, 2)))


def products(way: str, side: int) -> int:
    """Return the FLOPs of attention over a grid of side x side patches, one image and head."""
    grid = array("images", 1, side, side, WIDTH)
    report = cost(WayOfSeeing(way, WIDTH), (grid, grid, grid), backward=False, attention="math")
    return int(report.at(images=1).flops.forward)


def accuracy(way: str, seed: int, data: str, steps: int) -> float:
    """Return how many test images a transformer tells after training."""
    train, test = pictures(data)
    torch.manual_seed(seed)
    model = GridTransformer(way, train.images.shape[-1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps + 1)
    for _ in range(steps):
        batch = train[torch.randint(len(train), (64,))]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch.images), batch.labels).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return float((model(test.images).argmax(1) == test.labels).float().mean())


def accuracies(depth: Depth) -> dict[str, Measured]:
    """Return what the same transformer reaches with each way, and what it loses to the full one."""
    name, seeds = largest(depth), range(3)
    parts = [(way, seed, name, STEPS) for way in WAYS for seed in seeds]
    results = iter(side_by_side(depth, accuracy, parts))
    samples = {way: [next(results) for _ in seeds] for way in WAYS}
    values = {f"accuracy, {way}": sampled(reached) for way, reached in samples.items()}
    lost = {way: map(sub, samples["full"], samples[way]) for way in SHORTER}
    return values | {f"accuracy lost, {way}": sampled(part) for way, part in lost.items()}


def measure(depth: Depth) -> Measurement:
    """Count every way on three grids, and train the same transformer with each on MNIST."""
    values: dict[str, Measured] = {}
    counts = {way: {side: products(way, side) for side in (4, 16, 32)} for way in WAYS}
    for way, count in counts.items():
        depth.tell(f"cost of {way}")
        power = math.log(count[32] / count[16]) / math.log(32**2 / 16**2)
        values[f"power of N, {way}"] = exact(round(power, 6))
        values[f"FLOPs of a head, 16 patches, {way}"] = exact(count[4])
        values[f"products over full, 16 patches, {way}"] = exact(count[4] / counts["full"][4])
        values[f"products over full, 1024 patches, {way}"] = exact(count[32] / counts["full"][32])
    if depth.name == "full":
        values |= accuracies(depth)
    else:
        quick = unmeasured("at quick depth costs are counted, and nothing is trained")
        values |= {f"accuracy lost, {way}": quick for way in SHORTER}
    return Measurement(values, {"ways": table_of(values)})


def table_of(values: dict[str, Measured]) -> Grid:
    """Return what every way costs beside full attention, and its accuracy: all of them shares."""
    columns = {
        "cost, 16": "products over full, 16 patches",
        "cost, 1024": "products over full, 1024 patches",
        "accuracy": "accuracy",
    }
    shown = [name for name, column in columns.items() if f"{column}, full" in values]
    cells = [[values[f"{columns[name]}, {way}"].value for name in shown] for way in WAYS]
    title = (
        "Attention's products as a share of full attention's (16 and 1024 patches), and accuracy"
    )
    return Grid(title, cells, WAYS, shown)


EXPERIMENT = Experiment(
    "patches", "How can attention between patches cost less, and what is lost?", CLAIMS, measure
)
