"""Each rule in plain words, the algebra of rules, and what a rule can be asked."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from querykey.attention.masks import (
    FULL,
    NOTHING,
    At,
    Blocks,
    Causal,
    Dense,
    Dilated,
    Documents,
    Global,
    Mask,
    Padding,
    Prefix,
    Strided,
    Window,
    real_keys,
    split,
)

REAL = np.array([[True, True, False], [False, True, True]])
RULES = [
    (FULL, lambda i, j: True),
    (NOTHING, lambda i, j: False),
    (Causal(), lambda i, j: j <= i),
    (Window(3), lambda i, j: j in (i - 2, i - 1, i, i + 1, i + 2)),
    (Causal() & Window(3), lambda i, j: j in (i - 2, i - 1, i)),
    (Dilated(2, 3), lambda i, j: j in (i - 3, i, i + 3)),
    (Dilated(4, 1), lambda i, j: j in range(i - 3, i + 4)),
    (Strided(4), lambda i, j: j in (0, 4, 8)),
    (Global(1), lambda i, j: i == 0 or j == 0),
    (Blocks(4), lambda i, j: any(i in b and j in b for b in (range(4), range(4, 8), range(8, 12)))),
    (Prefix(2), lambda i, j: j in (0, 1)),
    (~Causal(), lambda i, j: j > i),
    (Causal() | Prefix(3), lambda i, j: j <= i or j <= 2),
    (~(Causal() & Window(2)), lambda i, j: j not in (i - 1, i)),
]


@pytest.mark.parametrize(("mask", "rule"), RULES, ids=[repr(mask) for mask, _ in RULES])
def test_rules_in_plain_words(mask, rule):
    plain = [[rule(i, j) for j in range(9)] for i in range(7)]
    assert mask.matrix(7, 9).tolist() == plain
    assert mask.matrix(3, 9, start=4).tolist() == plain[4:]
    tensors = mask.matrix(7, 9, like=torch.zeros(1))
    assert isinstance(tensors, torch.Tensor)
    assert tensors.tolist() == plain
    one_by_one = [[bool(mask.visible(i, j)) for j in range(9)] for i in range(7)]
    assert one_by_one == plain
    both = mask.matrix(2, 9, start=np.array([1, 5]))
    assert both.shape == (2, 1, 2, 9)
    assert both[:, 0].tolist() == [plain[1:3], plain[5:7]]


def test_a_window_of_w_under_causality_sees_exactly_w():
    for w in (1, 2, 5):
        seen = (Causal() & Window(w)).matrix(9, 9).sum(-1)
        assert seen.tolist() == [min(i + 1, w) for i in range(9)]


def test_rules_with_arrays():
    assert Padding(REAL).matrix(2, 3).tolist() == [[[list(map(bool, row))] * 2] for row in REAL]
    assert Padding(REAL[0]).matrix(2, 3).tolist() == [[True, True, False]] * 2
    ids = np.array([7, 7, 8])
    assert Documents(ids).matrix(1, 3, start=2).tolist() == [[False, False, True]]
    table = np.arange(6).reshape(2, 3) % 2
    assert Dense(table).matrix(2, 3, start=9).tolist() == (table == 1).tolist()
    assert Dense(table.reshape(1, 2, 3)).matrix(2, 3).shape == (1, 2, 3)
    assert (Padding(REAL) & Dense(table)).matrix(2, 3).shape == (2, 1, 2, 3)
    assert Padding([[1, 1, 0]]).matrix(1, 3).tolist() == [[[[True, True, False]]]]


def test_one_definition_serves_single_elements_inside_torch():
    """As flex_attention asks: one batch row, head, query and key at a time, vectorised by vmap."""
    real, table = torch.tensor(REAL), torch.arange(36).reshape(2, 2, 3, 3) % 5 < 2
    mask = (Causal() | Dense(table)) & Padding(real) & Documents(torch.tensor([[0, 0, 1]] * 2))

    def mask_mod(b, h, i, j):
        return mask.visible_at(i, j, At(batch=(b,), head=h, row=i))

    for dim in range(4):
        axes = [0 if d == 3 - dim else None for d in range(4)]
        mask_mod = torch.vmap(mask_mod, in_dims=tuple(axes))
    found = mask_mod(*(torch.arange(n) for n in (2, 2, 3, 3)))
    assert torch.equal(found, mask.matrix(3, 3, like=real))


LEAVES = [FULL, NOTHING, Causal(), Window(2), Window(3), Padding(REAL), Strided(2), ~Causal()]
masks = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
        inner.map(lambda mask: ~mask),
    ),
    max_leaves=5,
)


@given(masks, masks, masks)
def test_the_algebra_of_masks(a, b, c):
    assert (FULL & a, a & FULL, NOTHING | a, a | NOTHING) == (a, a, a, a)
    assert (FULL | a, NOTHING & a) == (FULL, NOTHING)
    assert ~~a == a
    assert (a & a, a | a) == (a, a)
    assert (a & b, a | b) == (b & a, b | a)
    assert ((a & b) & c, (a | b) | c) == (a & (b & c), a | (b | c))
    assert hash(a & b) == hash(b & a)
    if not any(isinstance(leaf, Padding) for leaf in (a & b).leaves):
        assert eval(repr(a & b)) == a & b

    def matrix(mask):
        return np.broadcast_to(mask.matrix(3, 3), (2, 1, 3, 3))

    assert (matrix(a & b) == (matrix(a) & matrix(b))).all()
    assert (matrix(a | b) == (matrix(a) | matrix(b))).all()
    assert (matrix(~a) == ~matrix(a)).all()


@given(masks)
def test_what_a_mask_says_about_itself_is_true(mask):
    n = 8
    if any(isinstance(leaf, Padding) for leaf in mask.leaves):
        return
    seen = mask.matrix(n, n)
    query, key = np.indices((n, n))
    assert not (seen & (query - key > mask.reach)).any()
    assert not (seen & (key > query) & (key >= mask.settles)).any()
    if not mask.uses_positions:
        assert (seen == seen[:1]).all()
    if mask.relative:
        assert (seen[1:, 1:] == seen[:-1, :-1]).all()


def test_equality_is_structural_and_by_identity_for_arrays():
    assert Window(3) == Window(3) != Window(4)
    assert Causal() & Window(3) == Window(3) & Causal()
    assert Causal() & Window(3) != Causal() & Window(3) & Strided(2)
    assert Causal() & Window(3) != Causal() | Window(3)
    assert Padding(REAL) == Padding(REAL) != Padding(REAL.copy())
    assert Padding(REAL) != Dense(REAL)
    assert len({Padding(REAL), Padding(REAL), Causal(), Causal(), FULL}) == 3
    assert Causal() != "Causal()"
    with pytest.raises(TypeError):
        Causal() & np.ones((3, 3), bool)


def test_split_gives_the_parts_that_must_all_hold():
    padding = Padding(REAL)
    assert split(FULL) == ()
    assert split(Causal()) == (Causal(),)
    assert split(Causal() & Window(4) & padding) == (Causal(), Window(4), padding)
    assert split(Causal() & (Window(4) & padding)) == (Causal(), Window(4), padding)
    assert split(Causal() | Prefix(2)) == (Causal() | Prefix(2),)


def test_real_keys_come_without_a_matrix():
    other = np.array([[1, 0, 1], [1, 1, 1]])
    assert real_keys(Causal()) is None
    assert real_keys(Causal() | Padding(REAL)) is None
    assert real_keys(Causal() & Padding(REAL)).tolist() == REAL.tolist()
    found = real_keys(Padding(REAL) & Padding(other), like=torch.zeros(1))
    assert torch.equal(found, torch.tensor(REAL & (other == 1)))


def test_reprs_read_back():
    assert repr(Causal() & Window(3)) == "Causal() & Window(size=3)"
    assert (
        repr(Causal() & (Window(3) | Global(1))) == "Causal() & (Window(size=3) | Global(count=1))"
    )
    assert repr(~(Causal() | Prefix(2))) == "~(Causal() | Prefix(count=2))"
    assert repr(NOTHING) == "~FULL"
    assert repr(Padding(REAL)) == "Padding(bool array (2, 3))"


def test_a_new_rule_needs_visible_and_nothing_else():
    class Even(Mask):
        def visible(self, query, key):
            return key % 2 == 0

    assert (Causal() & Even()).matrix(2, 3, start=1).tolist() == [[1, 0, 0], [1, 0, 1]]


def test_masks_stay_where_they_are_unless_moved():
    mask = Causal() & Padding(REAL)
    assert mask.on(np.zeros(1)) is mask
    moved = mask.on(torch.zeros(1))
    assert isinstance(split(moved)[1].real, torch.Tensor)
    assert moved.on(torch.zeros(1)) is moved
    elsewhere = moved.on(torch.zeros(1, device="meta"))
    assert split(elsewhere)[1].real.device.type == "meta"
    turned = (~mask).on(torch.zeros(1))
    assert turned.on(torch.zeros(1)) is turned
    read_only = np.broadcast_to(REAL[0], (2, 3))
    assert Padding(read_only).matrix(1, 3, like=torch.zeros(1)).tolist() == [[[[1, 1, 0]]]] * 2


MISTAKES = [
    (
        lambda: Window(0),
        ValueError,
        "a window counts keys, the query's own included, so it is at least 1; got 0",
    ),
    (lambda: Dilated(0, 2), ValueError, "a dilated window counts keys, the query's own included"),
    (lambda: Dilated(2, 0), ValueError, "a step is at least 1; got 0"),
    (lambda: Strided(-1), ValueError, "a step is at least 1; got -1"),
    (lambda: Global(0), ValueError, "the number of global positions is at least 1; got 0"),
    (lambda: Blocks(0), ValueError, "the size of a block is at least 1; got 0"),
    (lambda: Prefix(0), ValueError, "the length of a prefix is at least 1; got 0"),
    (
        lambda: Padding(np.ones((2, 3))),
        TypeError,
        "Padding wants booleans, or 0 and 1, where True means visible; got float64 of shape (2, 3)",
    ),
    (
        lambda: Dense(np.array([[0, -1]])),
        ValueError,
        "Dense wants booleans, or 0 and 1, where True means visible; got -1 in int64 of shape "
        "(1, 2)",
    ),
    (
        lambda: Padding(torch.tensor([1, -10000])),
        ValueError,
        "Padding wants booleans, or 0 and 1, where True means visible; got -10000 in torch.int64",
    ),
    (lambda: Window(10**30), ValueError, "so it is at most 2^62; got 1000000000000000000"),
    (lambda: Dilated(2**40, 2**40), ValueError, "the keys that a dilated window spans is at most"),
    (lambda: Causal() and Window(3), TypeError, "a mask has no truth value, so `and`, `or` and"),
    (lambda: not Causal(), TypeError, "combine Causal() with `&`, `|` and `~`"),
    (
        lambda: Documents(torch.ones(3)),
        TypeError,
        "Documents wants whole numbers for ids; got torch.float32 of shape (3,)",
    ),
]


@pytest.mark.parametrize(("make", "kind", "message"), MISTAKES)
def test_mistakes(make, kind, message):
    with pytest.raises(kind, match=re.escape(message)):
        make()
