"""Sinusoids, tables, rotations and distance biases, by formula and against transformers."""

import math

import numpy as np
import pytest
import torch

from querykey.attention.biases import ALiBi, Buckets, bucket
from querykey.attention.masks import Causal
from querykey.attention.positions import Rotary, learned, sinusoids
from querykey.attention.reference import attend

rng = np.random.default_rng(7)


def test_sinusoids_are_the_formula():
    found = sinusoids(np.arange(5), 6)
    for position in range(5):
        for i in range(3):
            angle = position / 10000 ** (2 * i / 6)
            assert found[position, 2 * i] == pytest.approx(math.sin(angle), abs=1e-15)
            assert found[position, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-15)
    assert sinusoids(np.arange(5), 7).shape == (5, 7)
    np.testing.assert_array_equal(sinusoids(np.array([[3], [1]]), 6)[:, 0], found[[3, 1]])
    like = torch.zeros(1, dtype=torch.float32)
    tensors = sinusoids(torch.arange(5), 6, like=like)
    assert tensors.dtype == torch.float32
    np.testing.assert_allclose(tensors, found, atol=1e-6)
    np.testing.assert_allclose(
        sinusoids(range(5), 6, base=100.0)[:, 2], np.sin(np.arange(5) / 100 ** (1 / 3))
    )


def test_learned_positions_are_rows_of_a_table():
    table = torch.randn(9, 4, requires_grad=True)
    at = torch.tensor([[0, 3], [8, 3]])
    assert torch.equal(learned(table, at), table[at])
    learned(table, at).sum().backward()
    assert table.grad[:, 0].tolist() == [1, 0, 0, 2, 0, 0, 0, 0, 1]
    assert learned(np.eye(3), np.array([2, 0])).tolist() == [[0, 0, 1], [1, 0, 0]]


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("width", [None, 4])
def test_rotary_turns_pairs_in_the_plane(layout, width):
    turn, x = Rotary(layout=layout, width=width), rng.standard_normal((2, 3, 5, 8))
    found = turn(x, np.arange(5))
    size = width or 8
    for i in range(size // 2):
        a, b = (i, i + size // 2) if layout == "half" else (2 * i, 2 * i + 1)
        for t in range(5):
            z = (x[..., t, a] + 1j * x[..., t, b]) * np.exp(1j * t * 10000 ** (-2 * i / size))
            np.testing.assert_allclose(found[..., t, a], z.real, atol=1e-14)
            np.testing.assert_allclose(found[..., t, b], z.imag, atol=1e-14)
    np.testing.assert_array_equal(found[..., size:], x[..., size:])


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rotary_scores_depend_on_distance_alone(layout):
    turn = Rotary(layout=layout)
    q, k, v = rng.standard_normal((3, 2, 3, 5, 8))
    at = np.arange(5)
    near = attend(turn(q, at), turn(k, at), v, mask=Causal())
    far = attend(turn(q, at + 100), turn(k, at + 100), v, mask=Causal())
    np.testing.assert_allclose(near, far, atol=1e-12)
    assert abs(near - attend(q, k, v, mask=Causal())).max() > 0.1


def test_rotary_takes_position_ids_per_row_and_a_scaling():
    turn, x = Rotary(base=500.0), rng.standard_normal((2, 3, 5, 8))
    ids = np.array([[0, 1, 2, 3, 4], [7, 8, 9, 2, 2]])
    found = turn(x, ids)
    for b in range(2):
        np.testing.assert_allclose(found[b], turn(x[b], ids[b]), atol=1e-15)
    slower = Rotary(base=500.0, scaling=lambda frequencies: frequencies / 4)
    np.testing.assert_allclose(slower(x, 4 * np.arange(5)), turn(x, np.arange(5)), atol=1e-13)
    half = torch.tensor(x).bfloat16()
    assert turn(half, torch.arange(5)).dtype == torch.bfloat16
    # Angles are worked out in float32: bfloat16 cannot tell position 1000 from 1001.
    exact = turn(half.double(), np.arange(1000, 1005))
    np.testing.assert_allclose(turn(half, torch.arange(1000, 1005)).double(), exact, atol=0.05)


def test_rotary_mistakes():
    with pytest.raises(ValueError, match='layout is "half" or "interleaved"; got \'gptj\''):
        Rotary(layout="gptj")
    with pytest.raises(ValueError, match="features turn in pairs, so their number is even; got 3"):
        Rotary(width=3)
    with pytest.raises(ValueError, match=r"cannot turn 8 of the 6 of an array \(5, 6\)"):
        Rotary(width=8)(np.zeros((5, 6)), np.arange(5))


def test_alibi_slopes():
    assert ALiBi(8).slopes.tolist() == [2.0**-i for i in range(1, 9)]
    assert ALiBi(1).slopes.tolist() == [2.0**-8]
    six = [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]
    np.testing.assert_allclose(ALiBi(6).slopes, six, rtol=1e-15)
    assert ALiBi(8).values(5, 2, 0) == -1.5
    with pytest.raises(ValueError, match="the number of heads is at least 1; got 0"):
        ALiBi(0)


@pytest.mark.parametrize("wrap", [np.asarray, torch.asarray])
def test_bias_rules_are_their_tables(wrap):
    q, k, v = (wrap(rng.standard_normal((2, 6, 5, 4))) for _ in range(3))
    distance = np.abs(np.arange(5)[:, None] - np.arange(5))
    table = wrap(-ALiBi(6).slopes[:, None, None] * distance)
    np.testing.assert_allclose(
        attend(q, k, v, bias=ALiBi(6)), attend(q, k, v, bias=table), atol=1e-14
    )
    learnt = rng.standard_normal((8, 6))
    offsets = np.arange(5) - np.arange(5)[:, None]
    entries = learnt[bucket(offsets, 8, True, 16)].transpose(2, 0, 1)
    rule = Buckets(wrap(learnt), furthest=16)
    np.testing.assert_allclose(
        attend(q, k, v, bias=rule), attend(q, k, v, bias=wrap(entries.copy())), atol=1e-14
    )


def test_the_table_of_buckets_learns():
    q, k, v = (torch.randn(1, 2, 5, 4, dtype=torch.float64) for _ in range(3))
    table = torch.randn(8, 2, dtype=torch.float64, requires_grad=True)

    def function(table):
        return attend(q, k, v, bias=Buckets(table, both_ways=False), mask=Causal())

    assert torch.autograd.gradcheck(function, table)
    assert Buckets(table) != Buckets(table.clone())
    plain = Buckets(table.detach().numpy(), both_ways=False)
    assert isinstance(plain.on(q).table, torch.Tensor)
    assert torch.equal(attend(q, k, v, bias=plain, mask=Causal()), function(table))


@pytest.mark.slow
@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (8, 20), (64, 256), (32, 300)])
def test_buckets_are_those_of_transformers(both_ways, buckets, furthest):
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5")
    offsets = torch.arange(-600, 601)
    theirs = modeling.T5Attention._relative_position_bucket(offsets, both_ways, buckets, furthest)
    assert torch.equal(bucket(offsets, buckets, both_ways, furthest), theirs)
    ours = bucket(offsets.numpy(), buckets, both_ways, furthest)
    np.testing.assert_array_equal(ours, theirs.numpy())


@pytest.mark.slow
def test_rotations_are_those_of_transformers():
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    gptj = pytest.importorskip("transformers.models.gptj.modeling_gptj")
    x, at = (
        torch.randn(2, 3, 5, 8, dtype=torch.float64),
        torch.tensor([[0, 1, 2, 3, 4], [9, 8, 7, 6, 5]]),
    )
    frequencies = torch.tensor(Rotary().frequencies(8))
    angles = at[..., None] * frequencies
    doubled = torch.cat([angles, angles], -1)
    theirs, _ = llama.apply_rotary_pos_emb(x, x, doubled.cos(), doubled.sin())
    torch.testing.assert_close(Rotary()(x, at), theirs, rtol=0, atol=1e-14)
    swapped = gptj.apply_rotary_pos_emb(x.transpose(1, 2), angles.sin(), angles.cos())
    interleaved = Rotary(layout="interleaved")(x, at)
    torch.testing.assert_close(interleaved, swapped.transpose(1, 2), rtol=0, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("heads", [1, 3, 8, 12, 16, 20])
def test_slopes_are_those_of_transformers(heads):
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    theirs = bloom.build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    np.testing.assert_allclose(ALiBi(heads).slopes, theirs.numpy(), rtol=1e-6)
