"""Splitting and joining heads, and which key head serves which query head."""

import numpy as np
import pytest
import torch

from querykey.attention.heads import join_heads, key_head, repeat_heads, split_heads
from querykey.attention.reference import attend


@pytest.mark.parametrize("wrap", [np.asarray, torch.asarray])
def test_split_and_join_undo_each_other(wrap):
    x = wrap(np.arange(2 * 5 * 12.0).reshape(2, 5, 12))
    heads = split_heads(x, 3)
    assert tuple(heads.shape) == (2, 3, 5, 4)
    assert heads[1, 2, 4].tolist() == x[1, 4, 8:].tolist()
    assert (join_heads(heads) == x).all()
    assert tuple(split_heads(x[0], 4).shape) == (4, 5, 3)


def test_value_heads_may_have_another_size():
    rng = np.random.default_rng(0)
    q, k = (split_heads(rng.standard_normal((2, 7, 3 * 2)), 3) for _ in range(2))
    v = split_heads(rng.standard_normal((2, 7, 3 * 5)), 3)
    assert join_heads(attend(q, k, v)).shape == (2, 7, 15)


def test_query_head_h_reads_key_head_h_divided_by_the_group():
    assert [key_head(h, 6, 2) for h in range(6)] == [0, 0, 0, 1, 1, 1]
    assert [key_head(h, 4, 4) for h in range(4)] == [0, 1, 2, 3]
    assert [key_head(h, 3, 1) for h in range(3)] == [0, 0, 0]
    k = np.arange(2.0).reshape(2, 1, 1)
    assert repeat_heads(k, 6).ravel().tolist() == [0, 0, 0, 1, 1, 1]
    assert repeat_heads(k, 2) is k


def test_features_that_do_not_split():
    with pytest.raises(ValueError, match="10 features do not split into 3 heads of one size"):
        split_heads(np.zeros((2, 10)), 3)
