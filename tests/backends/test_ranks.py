"""A sequence spread over four processes against the same sequence in one, by the equation."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.backends import ranks_driver
from tests.backends.ranks_driver import CASES, LOW, LOW_DECAY
from tests.budget import over_budget

import querykey as qk
from querykey.backends import BackendError
from querykey.backends.chunked import linear

ROOT = Path(__file__).parents[2]
RANKS = 4
REFUSALS = {
    "shares": "BackendError: ranks share a sequence in equal parts, and these do not fit together:",
    "dtypes": "BackendError: ranks share a sequence in equal parts, and these do not fit together:",
    "mechanisms": "BackendError: ranks share a sequence in equal parts, and these do not fit",
    "decay": "BackendError: ranks share a sequence in equal parts, and these do not fit together:",
    "gradients": "BackendError: ranks share a sequence in equal parts, and these do not fit",
    "window": "BackendError: a sequence over ranks takes FULL or Causal(), with Padding or "
    "without; Window(size=2) is neither",
    "softmax decay": "QuerykeyError: a decay multiplies the similarities of Kernel; "
    "Softmax(scale=None, softcap=None) has no use for it",
    "empty": "BackendError: there is nothing to compute: a size of this rank's part is 0",
    "numpy": "WrongTypeError: a sequence over ranks takes torch tensors; q is a ndarray",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each of four processes wrote; they run once for all tests."""
    folder = tmp_path_factory.mktemp("ranks")
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.backends.ranks_driver", folder, str(rank), str(RANKS)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
        )
        for rank in range(RANKS)
    ]
    try:
        errors = [process.communicate(timeout=180)[1].decode() for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * RANKS, "\n".join(errors)
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


def by_the_equation(case, count=RANKS, dtype=torch.float64):
    """The output and gradients of the whole sequence, in one process."""

    def attend(q, k, v, **kwargs):
        return qk.attend(q, k, v, **kwargs, backend="reference")

    arrays = case.draw(count)
    wide = {name: x.to(dtype) if x.is_floating_point() else x for name, x in arrays.items()}
    return case.run(attend, wide)


def joined(parts, name):
    return torch.cat([part[name] for part in parts], -1 if name == "decay" else -2)


def error(ours, theirs):
    return float((ours.double() - theirs.double()).abs().max() / (1 + theirs.double().abs().max()))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASES])
def test_parts_on_ranks_are_the_parts_of_the_whole(results, name):
    wanted = by_the_equation(CASES[name])
    assert wanted.keys() == results[0][name].keys()
    for array, whole in wanted.items():
        ours = joined([result[name] for result in results], array)
        assert ours.shape == whole.shape
        assert error(ours, whole) < 1e-10, array


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LOW])
def test_low_precision_is_within_the_budget(results, name):
    case = LOW[name]
    exact, low = by_the_equation(case), by_the_equation(case, dtype=case.dtype)
    ours = [joined([result[name] for result in results], array) for array in exact]
    assert {array.dtype for array in ours} == {case.dtype}
    assert over_budget(ours, [*low.values()], [*exact.values()]) == []


@pytest.mark.slow
def test_decay_in_float32_errs_like_chunks_in_one_process(results):
    """The equation is no measure here: chunks sum the gradient of a decay over all tokens."""

    def attend(q, k, v, mechanism, mask, decay):
        return linear.attend(q, k, v, mechanism, causal=True, decay=decay)

    exact, low = by_the_equation(LOW_DECAY), LOW_DECAY.run(attend, LOW_DECAY.draw(RANKS))
    ours = [joined([result["low decay"] for result in results], array) for array in exact]
    assert over_budget(ours, [*low.values()], [*exact.values()]) == []


@pytest.mark.slow
def test_bytes_of_kernel_attention_do_not_grow_with_the_length(results):
    batch, _, kv_heads, key_dim, value_dim = CASES["quadratic"].sizes
    width = qk.Quadratic().width(key_dim)
    numbers = batch * kv_heads * width * (value_dim + 1)
    for result in results:
        traffic = result["traffic"]
        kernel = {tokens: traffic["kernel", tokens]["bytes"] for tokens in (8, 64, 512)}
        # The agreement, sums with a gate and a count for each head, and their gradients.
        assert set(kernel.values()) == {8 + 8 * (numbers + 2 * batch * kv_heads) + 8 * numbers}
        assert len(traffic["kernel", 512]["calls"]) == 3


@pytest.mark.slow
def test_bytes_of_softmax_are_those_of_keys_and_values(results):
    batch, _, kv_heads, key_dim, value_dim = CASES["softmax"].sizes
    for result in results:
        for tokens in (8, 64, 512):
            numbers = batch * kv_heads * tokens * (key_dim + value_dim)
            traffic = result["traffic"]["softmax", tokens]
            assert traffic["bytes"] == 8 + 8 * numbers + 8 * RANKS * numbers
            assert len(traffic["calls"]) == 3


@pytest.mark.slow
def test_the_page_states_the_bytes_that_were_counted(results):
    page = " ".join((ROOT / "docs" / "attention.md").read_text().split())
    kernel, *softmax = (
        f"{results[0]['traffic'][key]['bytes']:,}"
        for key in (("kernel", 512), ("softmax", 8), ("softmax", 64), ("softmax", 512))
    )
    assert f"each rank sends {kernel} bytes at 8, 64 and 512 tokens per rank" in page
    assert "whereas softmax sends {}, {} and {}.".format(*softmax) in page


@pytest.mark.slow
@pytest.mark.parametrize("name", ["quadratic, decay", "softmax"])
def test_a_group_of_one_rank_has_the_whole(results, name):
    wanted = by_the_equation(CASES[name], count=1)
    for result in results:
        for array, whole in wanted.items():
            assert error(result["alone"][name][array], whole) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("name", [*REFUSALS])
def test_all_ranks_refuse_and_say_why(results, name):
    told = [result["refusals"][name] for result in results]
    for rank, text in enumerate(told):
        if name == "decay" and rank == 2:
            assert text.startswith("QuerykeyError: decay is the logarithm of a gate")
            assert "got 0.5 at (1, 2)" in text
        else:
            assert text.startswith(REFUSALS[name])


@pytest.mark.slow
def test_ranks_that_do_not_fit_are_shown_side_by_side(results):
    assert results[0]["refusals"]["shares"] == results[2]["refusals"]["shares"]
    _, *lines = results[0]["refusals"]["shares"].splitlines()
    assert [line.partition(", k")[0] for line in lines] == [
        "  rank 0: q (2, 3, 4)",
        "  rank 1: q (2, 3, 4)",
        "  rank 2: q (2, 4, 4)",
        "  rank 3: q (2, 3, 4)",
    ]
    assert "rank 2: QuerykeyError: decay is the log" in results[0]["refusals"]["decay"]
    line = results[0]["refusals"]["gradients"].splitlines()[3]
    assert line == (
        "  rank 2: q (2, 3, 4), k (2, 3, 4), v (2, 3, 4), torch.float64, Softmax(scale=None, "
        "softcap=None), Causal(), no padding, no decay, keys with gradients"
    )


@pytest.mark.slow
def test_a_process_outside_of_the_group_is_refused(results):
    told = [result["refusals"]["group"] for result in results]
    assert told[:2] == ["nothing was raised"] * 2
    assert told[3] == "BackendError: rank 3 is not in the group that shares the sequence"


@pytest.mark.slow
def test_ranks_are_in_step_after_refusals(results):
    for result in results:
        for array, values in result["after"].items():
            assert torch.equal(values, result["elu"][array])


@pytest.mark.slow
def test_a_second_derivative_is_refused(results):
    assert all("once_differentiable" in result["twice"] for result in results)


def test_without_a_process_group_it_says_what_to_call():
    from querykey.backends import ranks

    x = torch.ones(3, 4)
    with pytest.raises(BackendError, match=r"call torch\.distributed\.init_process_group"):
        ranks.attend(x, x, x)


def test_ranks_are_loaded_only_when_asked_for():
    code = (
        "import sys, torch, querykey as qk; x = torch.ones(3, 4); qk.attend(x, x, x); "
        "qk.attend(x, x, x, mechanism=qk.Kernel(qk.Quadratic())); "
        "print('querykey.backends.ranks' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_cases_differ_where_they_should():
    """Decay and padding are not idle: without them the whole gives other numbers."""
    case = ranks_driver.CASES["quadratic, decay"]
    with_decay = by_the_equation(case)["out"]
    without = by_the_equation(ranks_driver.CASES["quadratic"])["out"]
    assert error(with_decay, without) > 0.01
