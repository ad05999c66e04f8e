"""Which mask goes where (document 001, 2 b): every choice of masks is tried, and the needs decide.

A model needs a mask where, without it, an answer changes that must not: a real position's when only
padding was changed, or an earlier one's when only later tokens were. The smallest set of masks that
keeps every such answer is compared with what the text says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations

import torch
from torch import Tensor

from querykey.attention import FULL, Causal, Mask, Padding
from querykey.backends import attend
from querykey.lab.claim import Claim
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.listings import attention_function
from querykey.lab.measurement import Grid, Measurement, exact

SOURCE, TARGET, WIDTH = 7, 5, 6
CACHED = 4  # tokens before a new one
Masks = tuple[str, ...]
Model = Callable[[Tensor, Tensor, Masks], Tensor]

CLAIMS = (
    Claim("B4", "(i) an encoder needs {value}", ("key padding",), of="masks of an encoder"),
    Claim("B4", "(ii) a decoder with padding on the right needs {value}", ("causal",),
          of="masks of a decoder, padding right"),
    Claim("B4", "(ii) in a decoder only {value} is applied, wherever the padding is", ("causal",),
          of="masks of a decoder, padding left",
          right="Padding on the left, as in generation from prompts of different lengths, comes "
          "before the real tokens, and causality does not hide it."),
    Claim("B4", "(iii) an encoder-decoder needs {value}",
          ("encoder: key padding", "cross: key padding", "decoder: causal"),
          of="masks of an encoder-decoder, padding right"),
    Claim("B4", f"the code's causal mask serves a new query after {CACHED} cached tokens, too: of "
          f"{CACHED + 1} keys it sees {{value}}", CACHED + 1,
          of="keys that a new query sees, by the text's code",
          right="future_mask[:T, :S] starts at key 0, so a single query sees the first key alone; "
          "the last T rows of the mask are meant. `attend` asks for `start` instead of guessing."),
    Claim("B4", "masks keep padding from affecting computation, in a row of padding alone, too: "
          "of its {value} outputs by the text's code all are finite", TARGET * WIDTH,
          of="finite outputs of a row of padding alone, by the text's code",
          right="exp(-inf) is 0 for every key, and 0/0 is no number: one such row spoils the loss "
          "of its whole batch. `attend` returns zeros there."),
    Claim("B4", "`attend` keeps a row of padding alone from affecting computation, too: {value} of "
          "its outputs are finite", TARGET * WIDTH,
          of="finite outputs of a row of padding alone, by attend"),
)  # fmt: skip


def chosen(masks: Iterable[str], real: Tensor, where: str = "") -> Mask:
    """Return the mask of one attention: what is asked for it, both rules or neither."""
    rule = Causal() if f"{where}causal" in masks else FULL
    return rule & Padding(real) if f"{where}key padding" in masks else rule


def self_attention(x: Tensor, real: Tensor, masks: Masks, where: str = "") -> Tensor:
    """Return x after two layers of attention with residual sums."""
    for _ in range(2):
        x = x + attend(x, x, x, mask=chosen(masks, real, where))
    return x


def encoder_decoder(x: Tensor, y: Tensor, real: tuple[Tensor, Tensor], masks: Masks) -> Tensor:
    """Return the target's vectors, which attend to the source's."""
    source = self_attention(x, real[0], masks, "encoder: ")
    target = self_attention(y, real[1], masks, "decoder: ")
    mask = Padding(real[0]) if "cross: key padding" in masks else FULL
    return target + attend(target, source, source, mask=mask)


def smallest(candidates: Masks, keeps: Callable[[Masks], bool]) -> Masks | str:
    """Return the smallest set of masks that keeps what must be kept, if there is just one."""
    for size in range(len(candidates) + 1):
        sets = [masks for masks in combinations(candidates, size) if keeps(masks)]
        if sets:
            return sets[0] if len(sets) == 1 else f"{len(sets)} sets of {size}"
    return "no set suffices"


def tokens(length: int, seed: int) -> Tensor:
    """Return random vectors of one row."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, length, WIDTH, dtype=torch.float64, generator=generator)


def replaced(x: Tensor, where: Tensor) -> Tensor:
    """Return x with other vectors at the positions `where`."""
    return torch.where(where[None, :, None], tokens(x.shape[-2], 99), x)


def same(a: Tensor, b: Tensor, where: Tensor) -> bool:
    """Return whether two answers agree at the positions `where`."""
    return torch.allclose(a[..., where, :], b[..., where, :], atol=1e-12)


def encoder_keeps(masks: Masks) -> bool:
    """Return whether padding changes nothing, and every real token still sees every other."""
    real = torch.arange(SOURCE) < SOURCE - 2
    x = tokens(SOURCE, 0)
    before = self_attention(x, real, masks)
    if not same(before, self_attention(replaced(x, ~real), real, masks), real):
        return False
    places = torch.arange(SOURCE)
    after = self_attention(replaced(x, places == SOURCE - 3), real, masks)
    return not same(before, after, places == 0)  # the first token hears of the last real one


def decoder_keeps(masks: Masks, left: bool) -> bool:
    """Return whether neither padding nor later tokens change the answers at real positions."""
    places = torch.arange(TARGET)
    real = places >= 2 if left else places < TARGET - 2
    x = tokens(TARGET, 1)
    before = self_attention(x, real, masks)
    if not same(before, self_attention(replaced(x, ~real), real, masks), real):
        return False
    later = places >= (3 if left else 1)
    return same(before, self_attention(replaced(x, later), real, masks), real & ~later)


def encoder_decoder_keeps(masks: Masks) -> bool:
    """Return whether no padding and no later target changes answers, and the source is all seen."""
    if not encoder_keeps(tuple(m.removeprefix("encoder: ") for m in masks if "encoder: " in m)):
        return False
    places, sources = torch.arange(TARGET), torch.arange(SOURCE)
    real = (sources < SOURCE - 2, places < TARGET - 1)
    x, y = tokens(SOURCE, 2), tokens(TARGET, 3)
    before = encoder_decoder(x, y, real, masks)
    for other in (
        encoder_decoder(replaced(x, ~real[0]), y, real, masks),
        encoder_decoder(x, replaced(y, ~real[1]), real, masks),
    ):
        if not same(before, other, real[1]):
            return False
    later = places >= 2
    return same(before, encoder_decoder(x, replaced(y, later), real, masks), real[1] & ~later)


def keys_seen_when_decoding() -> Tensor:
    """Return which keys the text's code shows to one new query after cached tokens, as shares."""
    function = attention_function(longest=8)
    k = tokens(CACHED + 1, 4)
    v = torch.eye(CACHED + 1, dtype=torch.float64)[None]
    return function(k[:, -1:], k, v, causal=True)[0]


def row_of_padding() -> tuple[int, int]:
    """Return how many outputs of a row of padding alone are finite: by the text, and by attend."""
    x = tokens(TARGET, 5)
    printed = attention_function(longest=8)(x, x, x, key_padding_mask=torch.ones(1, TARGET))
    ours = attend(x, x, x, mask=Padding(torch.zeros(TARGET, dtype=torch.bool)))
    return int(printed.isfinite().sum()), int(ours.isfinite().sum())


def measure(depth: Depth) -> Measurement:
    """Try every set of masks in each model, and the text's code with a query after cached keys."""
    places = ("encoder: key padding", "encoder: causal", "cross: key padding")
    both = (*places, "decoder: causal", "decoder: key padding")
    shares = keys_seen_when_decoding()
    by_the_text, by_attend = row_of_padding()
    pictures = [("causal", Causal()), ("padding", Padding(torch.arange(SOURCE) < SOURCE - 2))]
    return Measurement(
        {
            "masks of an encoder": exact(smallest(("key padding", "causal"), encoder_keeps)),
            **{
                f"masks of a decoder, padding {side}": exact(
                    smallest(
                        ("causal", "key padding"),
                        lambda masks, left=side == "left": decoder_keeps(masks, left),
                    )
                )
                for side in ("right", "left")
            },
            "masks of an encoder-decoder, padding right": exact(
                smallest(both, encoder_decoder_keeps)
            ),
            "keys that a new query sees, by the text's code": exact(int((shares > 0).sum())),
            "finite outputs of a row of padding alone, by the text's code": exact(by_the_text),
            "finite outputs of a row of padding alone, by attend": exact(by_attend),
        },
        {
            name: Grid(f"Keys (across) that each query (down) sees: {name}",
                       mask.matrix(SOURCE, SOURCE).astype(float).reshape(-1, SOURCE).tolist())
            for name, mask in pictures
        },
    )  # fmt: skip


EXPERIMENT = Experiment(
    "masks", "Which attention of which model needs which mask?", CLAIMS, measure
)
