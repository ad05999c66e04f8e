"""Recurrent states on the GPU kernels: in Triton's interpreter, and on a GPU if there is one."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.backends import triton_state_driver as driver

import querykey as qk
from querykey.backends import BackendError, follow, triton
from querykey.backends.triton.layout import state_layout

HAS_TRITON = importlib.util.find_spec("triton") is not None
on_gpu = pytest.mark.skipif(
    not (torch.cuda.is_available() and HAS_TRITON), reason="needs a CUDA device and triton"
)
KERNEL = qk.Kernel(qk.Quadratic(), scale=0.125)


@pytest.fixture(scope="module")
def interpreted():
    done = subprocess.run(
        [sys.executable, "-m", "tests.backends.triton_state_driver"],
        env=os.environ | {"TRITON_INTERPRET": "1"}, cwd=Path(__file__).parents[2],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


MORE = [
    *(f"{name}, gates" for name in driver.GATED),
    "in turns, gates",
    "in turns with the equation",
    "the sums themselves",
    "compiled whole",
]


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")
@pytest.mark.parametrize("name", [*driver.CASES, *MORE])
def test_interpreted_against_all_pairs(name, interpreted):
    assert interpreted[name] < 1e-5


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")
def test_an_old_state_stays_as_it_was(interpreted):
    assert interpreted["an old state"] == 0


@pytest.mark.parametrize("numbers", [(1.0, 1.0, 2.0, 1.0), (0.5, 0.0, 0.0, 1.0)])
def test_the_layout_of_a_state_does_not_follow_torchs_default_device(numbers):
    """Sums go to the kernels' tables and come back the same, wherever new tensors are made."""
    torch.set_default_device("meta")
    try:
        layout = state_layout(7, 8, numbers, torch.device("cpu"))
    finally:
        torch.set_default_device(None)
    outer, total = (
        torch.randn(2, layout.letters.shape[1], 3),
        torch.randn(2, layout.letters.shape[1]),
    )
    back = layout.to_state(*layout.to_tables(outer, total, 4), 3)
    assert torch.allclose(back[0], outer)
    assert torch.allclose(back[1], total)


def three(tokens, heads=2, key_dim=5, value_dim=3, **options):
    return [
        torch.randn(1, heads, tokens, width, **options) for width in (key_dim, key_dim, value_dim)
    ]


@pytest.mark.parametrize(
    ("mechanism", "options", "reason"),
    [
        (qk.Softmax(), {}, "it computes kernel attention, not Softmax"),
        (qk.Kernel(qk.EluPlusOne()), {}, "it takes kernels of degree 2 in q.k, and EluPlusOne()"),
        (KERNEL, {"requires_grad": True}, "it gives no gradients through a state"),
        (KERNEL, {"dtype": torch.float64}, "it takes no float64"),
        (KERNEL, {}, "it takes tensors on a GPU; q is on cpu"),
    ],
)
def test_refusals(mechanism, options, reason):
    assert triton.recurrence_refusal(mechanism, *three(1, **options)).startswith(reason)


def test_refusals_of_many_tokens():
    wide = three(9, key_dim=129)
    assert triton.recurrence_refusal(KERNEL, *wide) == (
        "it takes keys and values of at most 128 entries, or one token"
    )


def test_a_layer_that_asks_for_it_by_name_gets_it_or_a_refusal():
    q, k, v = three(1)
    state = qk.empty_state(KERNEL, kv_heads=2, key_dim=5, value_dim=3, like=q)
    with pytest.raises(BackendError, match="'triton' cannot serve this call: it takes tensors on"):
        follow(q, k, v, state, backend="triton")


def on_device(case, dtype):
    """The case's outputs on the GPU, one piece after the other, through `qk.extend`."""
    kernel, similarity, inputs, real = driver.draw(case)
    inputs = [x.cuda().to(dtype) for x in inputs]
    state, outs, first = driver.begun(kernel, *inputs), [], 0
    there = None if bool(real.all()) else real.cuda()
    for count in case[6]:
        at = slice(first, first + count)
        given = None if there is None else there[:, at]
        out, state = qk.extend(*(x[:, :, at] for x in inputs), state, given)
        outs.append(out)
        first += count
    true = driver.wanted(similarity, *(x.cpu() for x in inputs), real)
    return torch.cat(outs, 2).cpu(), true, state


LONG = {
    "tokens": (driver.QUADRATIC, 2, 16, 4, 64, 64, (1,) * 9, False),
    "a prompt": (driver.QUADRATIC, 1, 4, 2, 64, 32, (3001, 1, 1), False),
    "pieces": (driver.TAYLOR, 2, 4, 4, 32, 64, (300, 1, 1025, 257, 1, 1), True),
    "odd sizes": (driver.POLYNOMIAL, 1, 6, 2, 20, 7, (513, 1, 1), False),
}


@on_gpu
@pytest.mark.parametrize("name", LONG)
def test_pieces_on_a_gpu(name):
    found, true, state = on_device(LONG[name], torch.bfloat16)
    # Each by itself: what a prompt leaves behind is seen by the few tokens after it alone.
    for at in (slice(None), slice(-2, None)):
        assert driver.error(found[:, :, at].double(), true[:, :, at]) < 5e-3
    assert state.counts[0] <= sum(LONG[name][6])
    again = on_device(LONG[name], torch.bfloat16)
    assert torch.equal(found, again[0])
    assert all(torch.equal(a, b) for a, b in zip(state.arrays, again[2].arrays, strict=True))


@on_gpu
@pytest.mark.parametrize("tokens", [257, 300, 1024, 2999])
def test_what_a_prompt_leaves_behind_on_a_gpu(tokens):
    case = (driver.QUADRATIC, 2, 8, 8, 64, 64, (tokens,), False)
    kernel, _, inputs, _ = driver.draw(case)
    q, k, v = (x.cuda().bfloat16() for x in inputs)
    _, state = qk.extend(q, k, v, driver.begun(kernel, q, k, v))
    phi = kernel.phi(k.double())
    assert driver.error(state.arrays[0], phi.mT @ v.double()) < 5e-3
    assert driver.error(state.arrays[1], phi.sum(-2)) < 1e-5


@on_gpu
@pytest.mark.parametrize("name", [n for n, case in driver.CASES.items() if max(case[6]) == 1])
def test_single_tokens_in_float32_on_a_gpu(name):
    found, true, _ = on_device(driver.CASES[name], torch.float32)
    assert driver.error(found.double(), true) < 1e-6


@on_gpu
def test_decoding_with_a_model():
    torch.manual_seed(0)
    attention = qk.nn.AttentionConfig(heads=4, kv_heads=2, mechanism=KERNEL)
    block = qk.nn.BlockConfig(256, attention, qk.nn.MLPConfig(512))
    config = qk.models.DecoderConfig(qk.models.EmbeddingConfig(100), block, layers=2)
    model = qk.models.Decoder(config).cuda().bfloat16()
    ids = torch.randint(0, 100, (3, 700), device="cuda")
    with torch.no_grad():
        whole = model(ids).float()
        state, scores = model.empty_state(batch=3), []
        for piece in (ids[:, :600], *ids[:, 600:].split(1, 1)):
            some, state = model.extend(piece, state)
            scores.append(some.float())
    assert driver.error(torch.cat(scores, 1), whole) < 2e-2
