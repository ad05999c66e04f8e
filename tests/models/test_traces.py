"""What torch.jit.trace and torch.export record of a model serves other batches and lengths too."""

import pytest
import torch

from querykey.models import PRESETS, ClassHead, Encoder, preset
from querykey.targets import build

pytestmark = [
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:.torch.jit.trace. :DeprecationWarning"),
]


SIZES = ((2, 7), (3, 7), (1, 5), (5, 20))  # rows and tokens
QUICK = {"gpt", "mistral", "t5", "vit", "davit", "masked-patches", "quadratic-decay"}


@torch.no_grad()
def agree(model, recorded, values):
    torch.testing.assert_close(recorded(*values), model(*values))


@pytest.mark.parametrize("name", PRESETS)
def test_the_trace_of_a_preset_serves_other_batches_and_lengths(name):
    target = build(name)
    model = target.model.eval()
    with torch.no_grad():
        traced = torch.jit.trace(model, tuple(target.example(batch=2, length=7).values()))
    for batch, length in SIZES:
        agree(model, traced, tuple(target.example(batch, length, seed=1).values()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.full) for n in PRESETS]
)
def test_an_exported_preset_serves_other_batches_and_lengths(name):
    target = build(name)
    model, values = target.model.eval(), tuple(target.example(batch=2, length=7).values())
    free = torch.export.Dim.DYNAMIC
    # Images, and vectors without tokens, have no length.
    single = [x.is_floating_point() and x.ndim in (2, 4) for x in values]
    axes = tuple({0: free} if one else {0: free, 1: free} for one in single)
    exported = torch.export.export(model, values, dynamic_shapes=axes).module()
    for batch, length in SIZES:
        agree(model, exported, tuple(target.example(batch, length, seed=1).values()))


def test_the_trace_of_a_classifier_finds_the_first_real_token_of_other_batches():
    torch.manual_seed(0)
    sizes = {"layers": 2, "width": 16, "heads": 2, "vocabulary": 13, "length": 20}
    config = preset("bert", sizes)
    model = Encoder(type(config)(**vars(config) | {"head": ClassHead(3)})).eval()
    ids = torch.randint(13, (4, 7))
    real = torch.arange(7) >= torch.tensor([[0], [2], [5], [1]])
    with torch.no_grad():
        traced = torch.jit.trace(model, (ids[:2], real[:2]))
    agree(model, traced, (ids, real))
    agree(model, traced, (ids[2:], real[2:]))
