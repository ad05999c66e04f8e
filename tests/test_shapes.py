"""The texts here are the interface: an error shows every array, the axis, and an arrow."""

import numpy as np
import pytest

from querykey.shapes import ShapeError, bind

Q = "*batch head query key_dim"
K = "*batch head key key_dim"
V = "*batch head key value_dim"


def zeros(*shape):
    return np.zeros(shape)


def message(**arrays):
    with pytest.raises(ShapeError) as caught:
        bind(**arrays)
    return str(caught.value)


def test_binds_every_axis_and_the_starred_ones_as_a_tuple():
    sizes = bind(q=(zeros(2, 3, 5, 7), Q), k=(zeros(2, 3, 11, 7), K), v=(zeros(2, 3, 11, 13), V))
    assert sizes == {
        "batch": (2,), "head": 3, "query": 5, "key_dim": 7, "key": 11, "value_dim": 13
    }  # fmt: skip
    assert bind(q=(zeros(3, 5, 7), Q))["batch"] == ()
    assert bind(q=(zeros(19, 17, 3, 5, 7), Q))["batch"] == (19, 17)


def test_a_missing_array_is_passed_over():
    assert bind(q=(zeros(3, 5, 7), Q), v=(None, V)) == bind(q=(zeros(3, 5, 7), Q))


def test_the_example_of_the_style_page():
    text = message(q=(zeros(2, 3, 4, 5), Q), k=(zeros(2, 3, 4, 4), K), v=(zeros(2, 3, 4, 4), V))
    assert text == (
        "axis `key_dim` is 5 in `q` but 4 in `k`\n"
        "  q      wants (batch, head, query, key_dim), has (2, 3, 4, 5)\n"
        "  k      wants (batch, head, key, key_dim), has (2, 3, 4, 4)  <-- here\n"
        "  v      wants (batch, head, key, value_dim), has (2, 3, 4, 4)"
    )


def test_too_few_axes():
    assert message(q=(zeros(5), Q)) == (
        "`q` has 1 axis but wants at least 3\n"
        "  q      wants (*batch, head, query, key_dim), has (5,)  <-- here"
    )
    assert message(x=(zeros(5, 2), "seq")) == (
        "`x` has 2 axes but wants 1\n  x      wants (seq,), has (5, 2)  <-- here"
    )


def test_batches_that_differ_in_size_or_in_number():
    assert message(q=(zeros(2, 6, 3, 4, 5), Q), k=(zeros(2, 7, 3, 4, 5), K)) == (
        "axis `batch_2` is 6 in `q` but 7 in `k`\n"
        "  q      wants (batch_1, batch_2, head, query, key_dim), has (2, 6, 3, 4, 5)\n"
        "  k      wants (batch_1, batch_2, head, key, key_dim), has (2, 7, 3, 4, 5)  <-- here"
    )
    assert message(q=(zeros(2, 3, 4, 5), Q), k=(zeros(3, 4, 5), K)).splitlines()[0] == (
        "`q` has 1 `batch` axis but `k` has 0 `batch` axes"
    )


def test_a_hint_comes_last_and_leaves_the_rest_alone():
    with pytest.raises(ShapeError) as caught:
        bind(q=(zeros(3, 4, 5), Q), k=(zeros(2, 3, 4, 5), K))
    error = caught.value
    assert str(error.with_hint("try `q[None]`")) == f"{error}\n  try `q[None]`"


def test_a_shape_error_is_a_value_error():
    assert issubclass(ShapeError, ValueError)
