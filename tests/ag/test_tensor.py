"""The backward walk: order, accumulation, memory, and what it refuses."""

import copy
import gc
import pickle
import re
import sys
import threading
import weakref

import numpy as np
import pytest

import querykey.ag as ag
from querykey.ag import nn, primitives, special, tensor
from querykey.ag.hooks import hooks
from querykey.ag.special import CACHED
from querykey.ag.tensor import Tensor
from querykey.errors import GraphError


def live_nodes():
    gc.collect()
    return sum(type(x) is Tensor for x in gc.get_objects())


@pytest.mark.slow
def test_a_chain_of_200_000_nodes_needs_no_recursion():
    x = ag.Tensor(1.0)
    y = x
    for _ in range(200_000):
        y = y + 1e-6
    y.backward()
    assert x.grad == 1.0


@pytest.mark.slow
def test_a_long_chain_that_is_never_walked_is_freed_without_recursion():
    before = live_nodes()
    y = ag.Tensor(1.0)
    for _ in range(200_000):
        y = y * 1.0
    del y
    assert live_nodes() == before


def test_backward_frees_the_graph_and_leaves_the_parameters():
    W = ag.Tensor(np.ones((3, 3)), label="W")
    before = live_nodes()
    x = np.ones((2, 3))
    for _ in range(50):
        x = ag.tanh(x @ W)
    loss = ag.sum(x)
    del x
    assert live_nodes() > before + 100
    loss.backward()
    assert live_nodes() == before + 1  # the loss itself is still held
    assert loss.edges != ()
    assert loss.saved == ()


def test_nothing_large_is_remembered(monkeypatch):
    sizes = []
    for name in ("zeros", "ones"):
        for module in (special, tensor, primitives):
            if hasattr(module, name):
                make = getattr(module, name)
                told = lambda *args, make=make: sizes.append(make(*args).size) or make(*args)  # noqa: E731
                monkeypatch.setattr(module, name, told)
    rows, wide = ag.Tensor(np.ones((CACHED + 1, 2))), ag.Tensor(np.ones((2, CACHED + 1)))
    (ag.sum(ag.relu(wide)) + ag.sum(ag.sum(rows, axis=0))).backward()
    ag.sum(rows + ag.Tensor(np.ones(2))).backward()
    assert sizes
    assert max(sizes) <= CACHED


def test_arrays_are_freed_while_the_walk_goes_on():
    x = ag.Tensor(np.ones((4, 5)))
    hidden = ag.exp(x * 2.0)
    last = ag.sum(ag.tanh(hidden))
    kept = weakref.ref(hidden.data)
    del hidden
    last.backward()
    assert kept() is None


def test_two_uses_of_a_shared_subgraph_add_up():
    x = ag.Tensor([2.0, 3.0])
    shared = x * x
    (ag.sum(shared * shared) + ag.sum(shared * 5.0) + ag.sum(shared)).backward()
    np.testing.assert_allclose(x.grad, 4 * x.data**3 + 6 * 2 * x.data)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_of_what_was_computed_is_walked_too(copied):
    x = ag.Tensor([1.0, 2.0])
    y = x * 2.0
    again = copied(y)
    (ag.sum(y) + ag.sum(again)).backward()
    assert np.array_equal(x.grad, [2.0, 2.0] if copied is copy.deepcopy else [4.0, 4.0])


def test_one_tensor_may_be_both_inputs():
    x = ag.Tensor([[2.0, 3.0], [5.0, 7.0]])
    ag.sum(x @ x + x * x - x / x + x).backward()
    ones = np.ones((2, 2))
    np.testing.assert_allclose(x.grad, ones @ x.data.T + x.data.T @ ones + 2 * x.data + 1)


def test_gradients_add_up_over_calls_until_they_are_forgotten():
    x = ag.Tensor([1.0, 2.0])
    for _ in range(3):
        ag.sum(x * x).backward()
    np.testing.assert_allclose(x.grad, 6 * x.data)
    x.grad = None
    ag.sum(x * x).backward()
    np.testing.assert_allclose(x.grad, 2 * x.data)


def test_a_leaf_takes_a_gradient_as_often_as_it_is_given_one():
    x = ag.Tensor([1.0, 2.0])
    x.backward([1.0, 3.0])
    x.backward([1.0, 3.0])
    assert x.grad.tolist() == [2, 6]
    ag.sum(x * x).backward()
    assert x.grad.tolist() == [4, 10]


def test_a_retained_graph_walks_again_with_the_same_result():
    x = ag.Tensor([1.0, 2.0])
    y = ag.sum(ag.exp(x) * x)
    y.backward(retain_graph=True)
    first, x.grad = x.grad, None
    y.backward()
    assert np.array_equal(first, x.grad)


def test_a_label_keeps_the_gradient_of_what_was_computed():
    x = ag.Tensor([1.0, 2.0])
    hidden, other = x * 3.0, x * 3.0
    hidden.label = "hidden"
    ag.sum(hidden * hidden + other).backward()
    np.testing.assert_allclose(hidden.grad, 2 * hidden.data)
    assert other.grad is None


def test_no_two_tensors_hold_the_same_gradient():
    a, b = ag.Tensor(np.ones(3), label="a"), ag.Tensor(np.ones(3), label="b")
    total = a + b
    total.label = "total"
    ag.sum(total * 2.0).backward()
    for one, two in ((a, b), (a, total), (b, total)):
        assert not np.shares_memory(one.grad, two.grad)
    a.grad *= 0
    assert (b.grad == 2).all()
    assert (total.grad == 2).all()


def test_an_added_gradient_does_not_leak_into_a_sibling():
    a, b = ag.Tensor(np.ones(3)), ag.Tensor(np.ones(3))
    c, d = a * 1.0, b * 1.0
    (ag.sum(c * 3.0) + ag.sum(c + d)).backward()
    assert (a.grad == 4).all()
    assert (b.grad == 1).all()


def test_gradients_have_the_type_of_their_tensor():
    x = ag.Tensor(np.ones((2, 3), "float32"))
    w = ag.Tensor(np.ones((3, 2)))
    h = x @ w
    assert h.dtype == np.float64
    ag.sum(h).backward()
    assert x.grad.dtype == np.float32
    assert w.grad.dtype == np.float64


@pytest.mark.parametrize("number", [2, 2.0, np.float64(2.0), np.sqrt(4.0), True])
def test_a_number_never_widens_float32(number):
    x = ag.Tensor(np.ones(3, "float32"))
    for y in (x * number, number * x, x / number, x + number, x - number, x**number, number**x):
        assert y.dtype == np.float32


def test_a_gradient_can_be_given_for_any_shape():
    x = ag.Tensor([1.0, 2.0, 3.0])
    (x * x).backward([1.0, 0.0, -1.0])
    np.testing.assert_allclose(x.grad, [2, 0, -6])


def test_a_constant_is_not_walked():
    x, c = ag.Tensor([1.0]), ag.Tensor([5.0], requires_grad=False)
    ag.sum(x * c + c).backward()
    assert c.grad is None
    assert x.grad == 5
    y = (x * 2.0).detach() * 3.0
    assert not y.requires_grad


def test_a_failing_pull_leaves_no_half_made_gradient():
    def fail(g):
        raise ZeroDivisionError

    x = ag.Tensor([1.0])
    y = ag.record("odd", x.data, (x, fail)) * 1.0 + x
    with pytest.raises(ZeroDivisionError):
        ag.sum(y).backward()
    assert x.grad is None
    ag.sum(x * 2.0).backward()
    assert x.grad == 2


def refuses(kind, text):
    return pytest.raises(kind, match=f"^{re.escape(text)}$")


def test_a_second_backward_is_refused():
    x = ag.Tensor([1.0, 2.0])
    y = ag.sum(x * x)
    y.backward()
    with refuses(
        RuntimeError,
        "backward has already passed the result of sum, (), and freed what it needed: "
        "compute it anew, or call backward(retain_graph=True) the first time",
    ):
        y.backward()


def test_a_backward_into_a_freed_part_is_refused_before_anything_changes():
    x = ag.Tensor([1.0, 2.0], label="x")
    shared = x * x
    a, b = ag.sum(shared), ag.sum(shared * 2.0 + x)
    a.backward()
    before = x.grad.copy()
    with pytest.raises(RuntimeError, match="already passed the result of multiply"):
        b.backward()
    assert np.array_equal(x.grad, before)


def change_by_assignment(w):
    w.data = w.data * 2


def change_in_place(w):
    w.data -= 0.5


def change_one_element(w):
    w.data[1] = 0.5


def change_through_a_view(w):
    np.asarray(w).reshape(2, 1)[1:] *= 3


def change_by_optimizer(w):
    w.grad = np.ones_like(w.data)
    ag.optim.SGD([w]).step()


CHANGES = [
    *(change_by_assignment, change_in_place, change_by_optimizer),
    *(change_one_element, change_through_a_view),
]


@pytest.mark.parametrize("change", CHANGES)
def test_an_in_place_change_of_a_saved_value_is_refused(change):
    w = ag.Tensor([1.0, 2.0], label="w")
    y = ag.sum(ag.exp(w))
    change(w)
    with refuses(
        RuntimeError,
        "w, (2,), was changed in place after exp read it, and its derivative would be wrong: "
        "change values only after backward",
    ):
        y.backward()


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("moment", ["before the sum", "before the quotient", "after it"])
def test_a_change_of_what_a_softmax_by_hand_has_read_is_refused(change, moment):
    w = ag.Tensor([1.0, 2.0], label="w")
    e = ag.exp(w)
    change(w) if moment == "before the sum" else None
    total = ag.sum(e)
    change(w) if moment == "before the quotient" else None
    y = ag.sum(e / total * [3.0, 4.0])
    change(w) if moment == "after it" else None
    with pytest.raises(RuntimeError, match=r"^w, \(2,\), was changed in place after (exp|divide)"):
        y.backward()


def test_a_softmax_by_hand_of_what_backward_has_passed_is_refused():
    x = ag.Tensor([1.0, 2.0])
    e = ag.exp(x)
    total = ag.sum(e)
    total.backward()
    with pytest.raises(RuntimeError, match=r"^backward has already passed the result of (exp|sum)"):
        (e / total).backward([1.0, 0.0])


@pytest.mark.parametrize("change", CHANGES)
def test_an_in_place_change_of_a_constant_is_refused(change):
    w, c = ag.Tensor([1.0, 2.0]), ag.Tensor([3.0, 4.0], label="c", requires_grad=False)
    if change is change_by_optimizer:
        return
    y = ag.sum(w * c)
    change(c)
    with pytest.raises(RuntimeError, match=r"^c, \(2,\), was changed in place after multiply read"):
        y.backward()


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_before_the_value_is_read_is_fine(change):
    w = ag.Tensor([1.0, 2.0])
    change(w)
    w.grad = None
    ag.sum(w * w).backward()
    np.testing.assert_allclose(w.grad, 2 * w.data)


def test_a_lent_array_that_nobody_writes_to_is_fine():
    w = ag.Tensor([1.0, 2.0])
    held = w.data
    y = w * w
    assert (y.data == held * held).all()
    assert w.data is y.edges[0][0].numpy() is held
    assert hooks.watch.lent
    ag.sum(y).backward()
    assert not hooks.watch.lent  # backward ends all loans
    held[:] = 5
    ag.sum(w * w).backward()
    np.testing.assert_allclose(w.grad, [2 + 10, 4 + 10])


@pytest.mark.parametrize("change", [change_by_assignment, change_in_place, change_one_element])
def test_a_computed_value_cannot_be_changed(change):
    x = ag.Tensor([1.0, 2.0])
    y = ag.exp(x)
    with refuses(
        RuntimeError,
        "the result of exp, (2,), was computed, and its own derivative may need the value that "
        "was changed in place: change a copy, or what it was computed from",
    ):
        (change(y), ag.sum(y).backward())


def test_a_retained_graph_refuses_the_step_between_two_walks():
    w = ag.Tensor([1.0, 2.0], label="w")
    y = ag.sum(w * w)
    y.backward(retain_graph=True)
    ag.optim.SGD([w]).step()
    with pytest.raises(RuntimeError, match=r"w, .* was changed in place after multiply read it"):
        y.backward()


def test_a_backward_from_many_numbers_is_refused():
    x = ag.Tensor(np.ones((2, 3)), label="x")
    with refuses(
        ValueError,
        "backward starts from a single number, and the result of exp has shape (2, 3): "
        "sum or average it first, or call backward(gradient) with an array of that shape",
    ):
        ag.exp(x).backward()
    with refuses(ValueError, "x has shape (2, 3), the gradient given (3,)"):
        x.backward(np.ones(3))


def test_an_integer_that_needs_a_gradient_is_refused():
    with refuses(
        TypeError,
        "ids holds int64, and only floats have gradients: "
        "give it an array of floats, or leave requires_grad out",
    ):
        ag.Tensor(np.arange(3), label="ids", requires_grad=True)
    assert not ag.Tensor(np.arange(3)).requires_grad
    with refuses(
        RuntimeError,
        "backward has nowhere to go: the result of sum, () int64, was made from "
        "constants and integers alone, and those have no gradients",
    ):
        ag.sum(ag.Tensor([1, 2, 3])).backward()


def test_an_assignment_is_refused_where_it_would_lose_a_gradient():
    w = ag.Tensor([1.0, 2.0], label="w")
    with refuses(
        TypeError,
        "w needs a gradient, and an assignment into it has none: build the result with ag.where, "
        "ag.concatenate or ag.stack; assign new weights to .data",
    ):
        w[0] = 3.0
    mask = ag.Tensor([1.0, 2.0], requires_grad=False)
    y = ag.sum(w * mask)
    mask[0] = 7.0
    assert mask.data[0] == 7
    ag.sum(w * mask).backward()
    np.testing.assert_allclose(w.grad, [7, 2])
    with pytest.raises(RuntimeError, match="changed in place after multiply read it"):
        y.backward()


def test_new_data_must_fit():
    w = ag.Tensor(np.ones((2, 3)), label="w")
    with refuses(ValueError, "w has shape (2, 3), its new data (3, 2)"):
        w.data = np.ones((3, 2))
    w.data = np.zeros((2, 3), "float32")
    assert w.dtype == np.float64


def test_an_error_names_the_operation_the_shapes_and_the_labels():
    X, W = ag.Tensor(np.ones((5, 4, 3)), label="X"), ag.Tensor(np.ones((4, 4)), label="Wq")
    with pytest.raises(ValueError, match=r"^matmul does not fit: ") as caught:
        X @ W
    assert str(caught.value).splitlines()[1:] == [
        "  X: shape (5, 4, 3), float64",
        "  Wq: shape (4, 4), float64",
    ]
    with pytest.raises(ValueError, match=r"^add does not fit: ") as caught:
        ag.exp(X) + np.ones(7, "float32")
    assert str(caught.value).splitlines()[1:] == [
        "  the result of exp: shape (5, 4, 3), float64",
        "  a constant: shape (7,), float32",
    ]
    with pytest.raises(ValueError, match=r"^concatenate does not fit: ") as caught:
        ag.concatenate([X, W])
    assert "  Wq: shape (4, 4), float64" in str(caught.value)


@pytest.mark.parametrize(
    ("op", "wrong"),
    [
        ("reshape", lambda x: ag.reshape(x, (7, 7))),
        ("sum", lambda x: ag.sum(x, axis=5)),
        ("mean", lambda x: ag.mean(x, axis=5)),
        ("moveaxis", lambda x: ag.moveaxis(x, 0, 5)),
        ("moveaxis", lambda x: ag.moveaxis(x, 5, 0)),
        ("getitem", lambda x: x[9]),
        ("getitem", lambda x: x[0, 0, 0, 0]),
        ("stack", lambda x: ag.stack([x, x[0]])),
        ("einsum", lambda x: ag.einsum("ij->i", x)),
        ("transpose", lambda x: ag.transpose(x, (0, 0, 1))),
        ("broadcast_to", lambda x: ag.broadcast_to(x, (9, 9))),
        ("where", lambda x: ag.where(np.ones(7, bool), x, 0.0)),
        ("swapaxes", lambda x: ag.swapaxes(x, 0, 9)),
        ("maximum", lambda x: ag.maximum(x, np.ones(7))),
        ("softmax", lambda x: ag.softmax(x, axis=7)),
        ("take", lambda x: ag.take(x, [99], axis=0)),
        ("matmul", lambda x: x @ ag.Tensor(1.0)),
        ("matmul", lambda x: ag.Tensor(1.0) @ x),
        ("matmul", lambda x: x @ np.ones((4, 5, 2))),
        ("divide", lambda x: x / np.ones(7)),
        ("split", lambda x: ag.split(x, 2, axis=1)),
    ],
)
def test_every_shape_error_says_who_complains(op, wrong):
    x = ag.Tensor(np.ones((2, 3, 5)), label="the input")
    with pytest.raises((ValueError, IndexError), match=r"the input: shape \(2, 3, 5\)") as caught:
        wrong(x)
    assert str(caught.value).startswith(f"{op} does not fit: ")
    assert str(caught.value).count("does not fit") == 1


def test_numpy_functions_become_ours_or_say_why_not():
    x = ag.Tensor([1.0, 2.0])
    y = np.sum(np.exp(x) * np.array([1.0, 2.0]))
    assert isinstance(y, ag.Tensor)
    y.backward()
    np.testing.assert_allclose(x.grad, np.exp(x.data) * [1, 2])
    ag.gradcheck(lambda a: np.abs(a) + np.mod(a, 0.7) + np.maximum(np.ones(2), a), [0.5, -2.0])
    ag.gradcheck(lambda a: np.concatenate([a, np.square(a)]) / np.mean(a, axis=0), [0.5, 2.0])
    with pytest.raises(TypeError, match=r"np.cbrt would lose the gradient"):
        np.cbrt(x)
    with pytest.raises(TypeError, match=r"np.linalg|np.trace would lose the gradient"):
        np.trace(x)
    assert np.array_equal(np.asarray(x), x.data)


def test_a_tensor_is_a_copy_of_the_array_it_was_given():
    array = np.ones(3)
    x = ag.Tensor(array)
    y = ag.sum(x * x)
    array[:] = 9
    y.backward()
    assert (x.grad == 2).all()


def test_representation_and_conversions():
    x = ag.Tensor([[1.0, 2.0]], label="x")
    assert repr(x) == "Tensor([[1., 2.]], label='x')"
    assert repr(x * 2.0) == "Tensor([[2., 4.]], op='multiply')"
    assert float(ag.sum(x)) == 3
    assert f"{ag.sum(x):.2f}" == "3.00"
    assert f"{x}" == repr(x)
    assert int(ag.Tensor(3)) == 3
    assert [10, 20, 30][ag.Tensor(1)] == 20
    assert len(x) == 1
    assert [row.shape for row in x] == [(2,)]
    assert bool(ag.Tensor(1.0) > 0)
    assert x.tolist() == [[1.0, 2.0]]
    assert (x.T.shape, x.mT.shape, x.ndim, x.size, x.device) == ((2, 1), (2, 1), 2, 2, "cpu")
    with pytest.raises(TypeError, match="nothing to iterate over"):
        iter(ag.Tensor(1.0))
    with pytest.raises(TypeError, match=r"computes with real numbers .* not with complex"):
        ag.Tensor(1j)
    with pytest.raises(ValueError, match="lives on the device 'cpu', not on 'cuda'"):
        x.to_device("cuda")


def test_losses_refuse_targets_that_would_broadcast():
    z = ag.Tensor(np.zeros((4, 1)))
    with refuses(
        ValueError,
        "BinaryCrossEntropyLoss compares element by element: the prediction has shape (4, 1), "
        "the target (4,)",
    ):
        nn.BinaryCrossEntropyLoss()(z, np.zeros(4))


def test_a_refused_change_stays_refused():
    x = ag.Tensor([1.0, 2.0])
    y = ag.exp(x)
    z = ag.sum(y * y)
    y.data[0] = 5
    for _ in range(2):
        with pytest.raises(RuntimeError, match="changed in place"):
            z.backward()
    assert x.grad is None


def test_a_change_concerns_only_the_graphs_that_read_it():
    w = ag.Tensor([1.0, 2.0])
    prediction = w * 3.0
    shown = prediction.data
    shown -= shown.mean()
    v = ag.Tensor([1.0])
    ag.sum(v * v).backward()
    np.testing.assert_array_equal(v.grad, [2.0])
    with pytest.raises(RuntimeError, match="was computed"):
        ag.sum(prediction).backward()


def mask_of(x, c):
    return ag.where(c, x, 0.0)


def picked_by(x, c):
    return x[c]


@pytest.mark.parametrize(("function", "kept"), [(mask_of, [1.0, 0.0]), (picked_by, [0.0, 1.0])])
@pytest.mark.parametrize("kind", [ag.Tensor, np.array, list])
def test_masks_and_indices_are_read_once(function, kept, kind):
    x = ag.Tensor([3.0, 4.0])
    c = kind([True, False]) if function is mask_of else kind([1])
    y = ag.sum(function(x, c))
    c[0] = 0
    y.backward()
    np.testing.assert_array_equal(x.grad, kept)


def test_a_view_of_a_changed_constant_is_refused():
    x, c = ag.Tensor([1.0, 1.0]), ag.Tensor([1.0, 2.0, 3.0], label="c", requires_grad=False)
    y, twice = ag.sum(x * c[1:]), ag.sum(x * (c * 2)[1:])
    c[1] = 100.0
    with pytest.raises(RuntimeError, match=r"^c, .* was changed in place after getitem read it"):
        y.backward()
    twice.backward()  # c * 2 is an array of its own
    np.testing.assert_array_equal(x.grad, [4.0, 6.0])


def test_writing_into_a_view_leaves_its_source_alone():
    c = ag.Tensor([1.0, 2.0], requires_grad=False)
    view = ag.reshape(c, (1, 2))
    view[0, 0] = 50.0
    np.testing.assert_array_equal(c.data, [1.0, 2.0])
    np.testing.assert_array_equal(view.data, [[50.0, 2.0]])


def test_new_data_is_a_copy():
    w, buffer = ag.Tensor([1.0, 2.0]), np.array([3.0, 4.0])
    w.data = buffer
    buffer[:] = 100
    np.testing.assert_array_equal(w.data, [3.0, 4.0])


def test_integers_that_are_made_to_want_a_gradient_are_refused():
    x = ag.Tensor([1, 2], label="x")
    x.requires_grad = True
    with pytest.raises(TypeError, match=r"^x holds int64, and only floats have gradients"):
        ag.sum(x * 1.5).backward()
    assert x.grad is None


def test_constants_keep_no_history_that_adds_up():
    before = live_nodes()
    average = ag.Tensor(0.0, requires_grad=False)
    for step in range(200):
        average = average * 0.9 + ag.Tensor(float(step), requires_grad=False) * 0.1
    assert live_nodes() - before < 10


def test_a_walked_sum_of_exponentials_holds_nothing():
    w, kept = ag.Tensor(np.zeros(10)), []
    for _ in range(5):
        kept.append(ag.sum(ag.exp(w * 0.1)))
        kept[-1].backward()
    assert all(loss._operand is None for loss in kept)


def test_a_parameter_is_trained_in_another_process():
    w = ag.Tensor([1.0, 2.0], label="w")
    w.stamp = 10**9  # of a process that has done much
    other = pickle.loads(pickle.dumps(w))
    ag.sum(other * other).backward()
    np.testing.assert_array_equal(other.grad, [2.0, 4.0])
    assert other.label == "w"


def test_modules_can_be_pickled():
    block = nn.TransformerBlock(4, 8, 2)
    x = np.random.default_rng(0).standard_normal((2, 3, 4))
    other = pickle.loads(pickle.dumps(block))
    np.testing.assert_array_equal(other(x).data, block(x).data)


def test_threads_add_up_one_gradient():
    w = ag.Tensor(np.ones(1000))

    def work():
        for _ in range(50):
            ag.sum(ag.tanh(w * 0.0) + w).backward()

    threads = [threading.Thread(target=work) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    np.testing.assert_array_equal(w.grad, np.full(1000, 200.0))


def test_a_pull_may_walk_a_graph_of_its_own():
    x = ag.Tensor([1.0, 2.0])

    def again(g):  # what was not kept is computed anew, as a checkpoint does
        inner = ag.Tensor(x.data)
        ag.sum(inner * inner * inner).backward()
        return g * inner.grad

    done = []

    def walk():
        ag.sum(ag.record("cube", x.data**3, (x, again))).backward()
        done.append(x.grad)

    thread = threading.Thread(target=walk, daemon=True)  # a walk that waits for itself never ends
    thread.start()
    thread.join(timeout=20)
    np.testing.assert_array_equal(done, [[3.0, 12.0]])


def test_a_view_of_a_view_of_a_changed_constant_is_refused():
    x, c = ag.Tensor([1.0, 1.0]), ag.Tensor([[1.0, 2.0, 3.0]], label="c", requires_grad=False)
    y = ag.sum(x * ag.reshape(c, (3, 1))[1:, 0])
    c[0, 1] = 100.0
    with pytest.raises(RuntimeError, match=r"^c, .* was changed in place after reshape read it"):
        y.backward()


def test_a_change_after_a_product_of_constants_is_fine():
    x, c = ag.Tensor([1.0, 1.0]), ag.Tensor([[1.0, 2.0]], requires_grad=False)
    y = ag.sum(x * (c @ np.eye(2)))  # an array of its own, though NumPy made it through a view
    c[0, 1] = 100.0
    y.backward()
    np.testing.assert_array_equal(x.grad, [1.0, 2.0])


def test_constants_made_with_exp_keep_no_history_that_adds_up():
    before = live_nodes()
    decaying = ag.Tensor([1.0, 2.0], requires_grad=False)
    for _ in range(200):
        decaying = ag.exp(decaying * -0.5)
    assert live_nodes() - before < 10


def test_a_pull_may_walk_to_a_leaf_that_the_graph_reads_too():
    w, x = ag.Tensor([2.0, 3.0]), ag.Tensor([5.0, 7.0])

    def again(g):  # gradients of w are added up inside, while others wait for it outside
        inner = ag.Tensor(x.data)
        ag.sum(inner * w * g).backward()
        return inner.grad

    product = ag.record("product", x.data * w.data, (x, again))
    both = product + w  # one gradient, in the hands of two
    ag.sum(both * [1.0, 10.0]).backward()
    np.testing.assert_array_equal(w.grad, [1 * 5 + 1, 10 * 7 + 10])
    np.testing.assert_array_equal(x.grad, [2.0, 30.0])


def test_a_thread_that_waits_for_another_walk_is_told_what_that_freed():
    x, refused = ag.Tensor([1.0, 2.0]), []

    def walk():
        try:
            other.backward()
        except Exception as error:
            refused.append(error)

    def meanwhile(g):
        thread.start()
        thread.join(timeout=0.2)  # it cannot end before this walk has
        return g

    thread = threading.Thread(target=walk)
    h = ag.record("slow", x.data, (x, meanwhile))
    loss, other = ag.sum(h), ag.sum(h)
    loss.backward()
    thread.join()
    assert [type(error) for error in refused] == [GraphError]
    assert str(refused[0]).startswith("backward has already passed the result of slow")
    np.testing.assert_array_equal(x.grad, [1.0, 1.0])


@pytest.mark.parametrize("pull", [lambda g, x: 2 * g * x, lambda g, x: (2 * g * x.data).tolist()])
def test_a_pull_may_return_whatever_is_an_array(pull):
    x = ag.Tensor([1.0, 2.0])
    y = ag.record("square", x.data**2, (x, lambda g: pull(g, x)))
    ag.sum(y * 3.0).backward()
    np.testing.assert_array_equal(x.grad, [6.0, 12.0])
    assert type(x.grad) is np.ndarray


def test_what_a_pull_keeps_is_not_changed():
    x, slope = ag.Tensor([1.0, 2.0]), np.array([3.0, 4.0])
    total = ag.sum(x)
    line = ag.record("line", x.data * slope, (x, lambda g: slope))
    (ag.sum(line) + total).backward()
    np.testing.assert_array_equal(x.grad, [4.0, 5.0])
    np.testing.assert_array_equal(slope, [3.0, 4.0])


def test_a_pull_that_returns_no_gradient_is_named():
    x = ag.Tensor([1.0, 2.0], label="x")
    with pytest.raises(
        TypeError, match=r"^what pulls a gradient through odd to x returned NoneType"
    ):
        ag.sum(ag.record("odd", x.data, (x, lambda g: None))).backward()
    with pytest.raises(ValueError, match=r"^what pulls .* odd to x returned .* \(3,\), not \(2,\)"):
        ag.sum(ag.record("odd", x.data, (x, lambda g: np.ones(3)))).backward()


def test_moveaxis_says_that_it_was_given_unequally_many_axes():
    with pytest.raises(ValueError, match=r"^moveaxis does not fit: 2 axes go to 1 places\n  x: "):
        ag.moveaxis(ag.Tensor(np.ones((2, 3)), label="x"), (0, 1), 0)
