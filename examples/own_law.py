"""A law of one's own: a sliding window of 4 tokens sees nothing older, and an off-by-one shows.

python examples/own_law.py
"""

import torch
from torch import nn

import querykey as qk
from querykey.laws import Law, Run, Trial, every_cell

WINDOW, OLD = 4, 5


def forget(runner, setting):
    """Replace the first tokens: answers more than a window behind them may not move."""
    rows, inputs = range(setting.batch), runner.inputs(setting)
    old = (torch.arange(setting.length) < OLD).expand(setting.batch, -1)
    changed = runner.signature.with_other(inputs, runner.inputs(setting, seed=1), old)
    keep = every_cell(rows, range(OLD + WINDOW - 1, setting.length))
    move = every_cell(rows, range(OLD))  # these must move, or the trial shows nothing
    what = f"only the first {OLD} tokens were replaced"
    yield Trial(Run(inputs, setting), Run(changed, setting), (keep, keep), (move, move), what)


window = Law(
    "window",
    says=f"An answer depends on the last {WINDOW} tokens only.",
    why="Otherwise decoding with a cache of that size gives other answers.",
    how="The oldest tokens are replaced; answers that lie further ahead may not move.",
    trials=forget,
)


class SlidingWindow(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.embed, self.mask = nn.Embedding(50, 16), qk.Causal() & qk.Window(size)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        return x + qk.attend(x, x, x, mask=self.mask)


for size in (WINDOW, WINDOW + 1):  # the second model is off by one
    finding = qk.check(SlidingWindow(size), laws=[window]).law("window")
    print(f"a window of {size} keys: {finding.verdict} {finding.note}")
    assert finding.verdict == ("holds" if size == WINDOW else "violated")
