"""Predictions from a calibration whose numbers are made up, so that the times are known by hand."""

import json
import math
import random
from dataclasses import replace

import pytest
import torch
from torch import nn

import querykey as qk
from querykey import cli
from querykey.costs.timing import calibration, measuring, probes
from querykey.costs.timing.calibration import Calibration, calibrate, place, read, write
from querykey.costs.timing.factors import STARTING, ModelTime, errors_of, factors_of, refuse_far
from querykey.costs.timing.prediction import PassTime
from querykey.costs.timing.rates import Rates, TimedOperation, kind_of
from querykey.costs.timing.trials import TRIALS, TrialModel

NONE = dict.fromkeys(("plain", "recorded", "backward", "view", "module", "mixed"), 0.0)


def made_up(**overheads):
    """Products at 1e9 FLOP/s, elementwise functions at 1e8 bytes/s."""
    shapes = [(2.0, 4.0, 4.0), (10.0, 4.0, 4.0), (6.0, 8.0, 2.0)]
    products = [TimedOperation("product", shape, 1e6, 1e-3) for shape in shapes]
    bytes_ = [TimedOperation("aten.mul", (n, 8.0), 2.0**n, 2.0**n / 1e8) for n in (4, 10, 30)]
    return Calibration(
        "cpu",
        "made up",
        1,
        ("float32",),
        "2",
        (*products, *bytes_),
        NONE | overheads,
        {"float32": (1.0, 1.0)},
        (0.1, -0.3),
        1.0,
    )


def model():
    return nn.Sequential(nn.Linear(30, 50, bias=False), nn.Hardtanh())


def test_products_take_their_rate_and_streams_their_bandwidth():
    report = qk.cost(model(), qk.array("n", 30)).at(n=20)
    found = report.predict(made_up())
    product, elementwise = 2 * 20 * 30 * 50 / 1e9, 2 * 4 * 20 * 50 / 1e8
    assert found.forward == pytest.approx(product + elementwise)
    # backward: the gradient of the weight, and that of the function, which reads two operands
    assert found.step == pytest.approx(2 * product + elementwise * (1 + 3 / 2))
    assert found.error == pytest.approx(0.2)
    assert "(median error 20%)" in str(found)
    inference = qk.cost(model(), qk.array("n", 30), backward=False).at(n=20).predict(made_up())
    assert inference.step is None
    assert "training" not in str(inference)


@pytest.mark.parametrize(
    ("overhead", "forward", "backward"),
    [
        ("module", 3, 0),  # the sequence and two layers
        ("view", 1, None),  # the transposed weight
        ("mixed", 2, 2),  # operations
        ("recorded", 0, 3),  # all that autograd notes, a view among them
        ("backward", 0, 3),
    ],
)
def test_what_starting_costs_is_added(overhead, forward, backward):
    report = qk.cost(model(), qk.array("n", 30)).at(n=20)
    plain, slow = report.predict(made_up()), report.predict(made_up(**{overhead: 1.0}))
    assert slow.forward - plain.forward == pytest.approx(forward)
    more = (slow.step - slow.forward) - (plain.step - plain.forward)
    assert more >= 1 if backward is None else more == pytest.approx(backward)


def test_factors_multiply_what_is_predicted():
    report = qk.cost(model(), qk.array("n", 30)).at(n=20)
    plain, slow = (
        report.predict(made_up()),
        report.predict(replace(made_up(), factors={"float32": (2.0, 3.0)})),
    )
    assert slow.forward == pytest.approx(2 * plain.forward)
    assert slow.step == pytest.approx(3 * plain.step)


def on_a_gpu(**overheads):
    """The same numbers on a GPU; the smallest product takes 1 ms, which no other is faster than."""
    return replace(made_up(**overheads), device="cuda")


def test_a_gpu_runs_while_it_is_started():
    report = qk.cost(model(), qk.array("n", 30)).at(n=20)
    slow = on_a_gpu(plain=1.0)
    assert report.predict(slow).forward == pytest.approx(2)  # two operations are started
    slow = replace(slow, factors={STARTING: (5.0, 7.0), "float32": (11.0, 13.0)})
    assert report.predict(slow).forward == pytest.approx(5 * 2)
    assert report.predict(slow).step == pytest.approx(7 * 4)  # and two gradients
    busy = replace(slow, overheads=NONE)
    assert report.predict(busy).forward == pytest.approx(11 * report.predict(on_a_gpu()).forward)


def test_on_a_gpu_a_product_takes_what_its_flops_or_its_bytes_do():
    """1e6 FLOP/s at best, 1e3 bytes/s, and 1 second at least: 2, 1000 and 4000 seconds more."""
    sizes = [(0.0, 0.0, 0.0), (20.0, 20.0, 20.0), (0.0, 20.0, 0.0)]
    seconds = [1.0, 1 + 2 * 2.0**60 / 1e6, 1 + 4 * (2 * 2.0**20 + 1) / 1e3]
    points = [
        TimedOperation("product", size, 2 * 2 ** sum(size), spent)
        for size, spent in zip(sizes, seconds, strict=True)
    ]
    stream = TimedOperation("aten.mul", (10.0, 8.0), 1e3, 1.0)
    rates = Rates([*points, stream], "cuda")
    for size in ((10.0, 10.0, 10.0), (3.0, 18.0, 1.0)):
        m, k, n = (2**axis for axis in size)
        least = 1 + max(2 * m * k * n / 1e6, 4 * (m * k + k * n + m * n) / 1e3)
        assert rates.seconds("product", size, 2 * m * k * n) == pytest.approx(least, rel=0.02)


def product(axis, seconds, dtype="float32"):
    return TimedOperation("product", (axis, 5.0, 5.0), 1e6, seconds, dtype)


def test_rates_lie_between_those_of_near_shapes():
    rates = Rates([product(1.0, 1e-3), product(9.0, 1e-4)])
    assert rates.seconds("product", (1.0, 5.0, 5.0), 1e6) == pytest.approx(1e-3, rel=0.01)
    assert rates.seconds("product", (9.0, 5.0, 5.0), 2e6) == pytest.approx(2e-4, rel=0.01)
    assert 1e-4 < rates.seconds("product", (5.0, 5.0, 5.0), 1e6) < 1e-3
    assert Rates(()).seconds("product", (5.0, 5.0, 5.0), 1e6) == 0


def test_streams_lie_between_measured_amounts_and_last_axes():
    narrow = [TimedOperation("aten.mul", (0.0, 4.0), w, s) for w, s in ((10.0, 1.0), (20.0, 3.0))]
    lines = Rates(narrow)
    found = [lines.seconds("aten.mul", (0.0, 4.0), work) for work in (1, 10, 15, 20, 40)]
    assert found == pytest.approx([1, 1, 2, 3, 6])
    assert lines.seconds("aten.unheard_of", (0.0, 4.0), 15) == pytest.approx(2)
    wide = [TimedOperation("aten.mul", (0.0, 8.0), 10.0, 5.0)]
    both = Rates([*narrow, *wide])
    found = [both.seconds("aten.mul", (0.0, last), 10) for last in (1.0, 4.0, 5.0, 8.0, 9.0)]
    assert found == pytest.approx([1, 1, 2, 5, 5])


def test_what_was_not_measured_runs_as_what_is_like_it():
    half = product(5.0, 1e-6, "bfloat16")
    rates = Rates([product(5.0, 1e-3), half, TimedOperation("aten.clone", (0.0, 4.0), 1.0, 7.0)])
    at = (5.0, 5.0, 5.0), 1e6
    assert rates.seconds("biased product", *at, "float32") == pytest.approx(1e-3)
    assert rates.seconds("product", *at, "bfloat16") == pytest.approx(1e-6)
    assert rates.seconds("product", *at, "float16") == pytest.approx(1e-3)
    assert rates.seconds("aten._to_copy", (0.0, 4.0), 2.0) == 14


def test_kinds_tell_biases_causal_attention_and_sums_of_rows_apart():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.Linear(6, 8)

        def forward(self, x):
            y = self.map(x.flatten(0, 1)).unflatten(0, x.shape[:2])[:, None]
            mixed = nn.functional.scaled_dot_product_attention(y, y, y, is_causal=True)
            return (mixed @ y.mT).sum(-1)

    report = qk.cost(Model(), qk.array("n", "t", 6)).at(n=2, t=5)
    calls = report.traffic.calls_at(report.sizes)
    kinds = {kind_of(call, {})[0] for call, _, phase in calls if phase == "forward"}
    assert kinds == {"biased product", "causal attention", "batched product", "aten.sum of rows"}
    back = {kind_of(call, {})[0] for call, _, phase in calls if phase != "forward"}
    assert {"causal attention backward", "batched product", "product", "aten.sum"} <= back
    assert "aten.sum of rows" not in back


class Scaled(nn.Module):
    """Three elementwise functions: by a row, by a number, and by as many numbers."""

    def __init__(self):
        super().__init__()
        self.row = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return (x * self.row * 3.0).sub(x)


def test_what_repeats_an_operand_is_a_kind_of_its_own():
    report = qk.cost(Scaled(), qk.array("n", 6), backward=False).at(n=5)
    kinds = [kind_of(call, {})[0] for call, _, _ in report.traffic.calls_at(report.sizes)]
    assert sorted(kinds) == ["aten.mul", "aten.sub", "elementwise by a row"]
    row = TimedOperation("elementwise by a row", (5.0, 3.0), 1.0, 1.0)
    slow = replace(made_up(), operations=(*made_up().operations, row))
    # read and written are 5 x 6 numbers twice and one row: a second for each byte
    more = report.predict(slow).forward - report.predict(made_up()).forward
    assert more == pytest.approx(4 * (2 * 30 + 6), rel=1e-3)


def test_trials_have_heads_of_which_fused_attention_was_measured():
    """A GPU has no fast attention for heads wider than 256, so such a trial tells of no other."""
    for device, models in TRIALS.items():
        for model in models:
            assert model.width % model.heads == 0
            assert 16 <= model.width // model.heads <= 128
        assert {model.dtype for model in models} == {
            str(dtype).removeprefix("torch.") for dtype in calibration.DTYPES[device]
        }
    measured = {width for _, _, width in probes.ON_GPU.attention}
    assert {model.width // model.heads for model in TRIALS["cuda"]} <= measured


class Warming(nn.Module):
    """A model that takes as long as it is told, call by call, on a clock of its own."""

    def __init__(self, *seconds):
        super().__init__()
        self.weight, self.now, self.seconds = nn.Parameter(torch.ones(())), 0.0, [*seconds]

    def forward(self, x):
        self.now += self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]
        return self.weight * x


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ([9, 9, 8, 8, 7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2], (2, 2)),  # by round: forward, step
        ([900, 30, 5, 14, 5, 14, 5, 14, 1], (5, 14)),  # four rounds, of which the last two agree
        ([2**power for power in range(24, 0, -1)], (4, 2)),  # no two ever do
    ],
)
def test_a_model_is_timed_until_its_two_best_rounds_agree(seconds, best):
    model, x = Warming(*seconds), torch.ones(())
    assert measuring.best_times(model, x, x, lambda: model.now) == best


def test_trials_stop_in_time_but_three_are_made_on_a_gpu(monkeypatch):
    now = [0.0]

    def timed(self, device, clock, predicted):
        now[0] += 4.0
        return ModelTime(self.dtype, predicted, (1.0, 1.0))

    monkeypatch.setattr(calibration.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(Calibration, "parts", lambda *_: (PassTime(1.0, 0.0), PassTime(1.0, 0.0)))
    monkeypatch.setattr(TrialModel, "timed", timed)
    for until, count in ((0.0, 3), (13.0, 3), (16.0, 4), (17.0, 4), (1e9, len(TRIALS["cuda"]))):
        now[0] = 0.0
        assert len(calibration.trial_times(on_a_gpu(), lambda: 0.0, until)) == count


def test_factors_that_no_device_explains_are_refused():
    refuse_far({"float32": (1.9, 0.6), STARTING: (4.0, 3.0)})
    for pair, said in (((1.3, 2.18), "2.2 times"), ((0.4, 1.0), "0.4 times")):
        with pytest.raises(qk.CostError, match=f"models in bfloat16 took {said} as long.*measure"):
            refuse_far({"float32": (1.0, 1.0), "bfloat16": pair})


def test_products_on_a_gpu_have_even_widths_and_any_number_of_tokens():
    """In x.T @ w, the gradient of a weight, tokens are what is summed over."""
    numbers, sizes = random.Random(1), probes.sizes_on("cuda")
    for layout in range(sizes.layouts):
        for _ in range(20):
            m, k, n = probes.shape_of_product(numbers, sizes, layout)
            tokens, width = (k, m) if layout == probes.GRADIENT else (m, k)
            assert width % 64 == n % 64 == 0 < width
            assert 16 <= tokens <= sizes.tokens[1]
            assert 2 * m * k * n <= sizes.most


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_weights_are_read_in_turn_so_that_no_cache_holds_them(device, monkeypatch):
    shapes = []

    def filled(*shape, device, dtype):
        shapes.append(shape)
        return torch.empty(shape, dtype=dtype, device="meta")

    monkeypatch.setattr(probes, "filled", filled)
    limits, counts = probes.sizes_on(device), set()
    for probe in probes.operations(device, torch.float32):
        if probe.name.startswith("product"):
            shapes.clear()
            probe.make()
            _, *weights = (shape for shape in shapes if len(shape) == 2)
            once, copies = 4 * math.prod(weights[0]), len(weights)
            counts.add(copies)
            if 1 < copies < limits.copies:
                assert once * copies <= limits.cold < once * (copies + 1)
            else:  # at least one, and at most so many
                assert (2 * once > limits.cold) if copies == 1 else once * copies <= limits.cold
    assert limits.copies in counts
    assert len(counts) > 3


def test_factors_are_those_of_what_a_model_waited_for():
    def timed(dtype, work, starting, forward, step):
        part = PassTime(work, starting)
        return ModelTime(dtype, (part, part), (forward, step))

    models = [
        timed("float32", 10.0, 1.0, 20.0, 30.0),
        timed("float32", 10.0, 1.0, 40.0, 30.0),
        timed("bfloat16", 10.0, 1.0, 50.0, 60.0),
        timed("bfloat16", 1.0, 10.0, 70.0, 80.0),
    ]
    expected = {"float32": (3.0, 3.0), "bfloat16": (5.0, 6.0), STARTING: (7.0, 8.0)}
    assert factors_of(models, "cuda") == expected
    # Without the first model the second's factors hold for it, and so on; alone there is none.
    errors = [40 / 20 - 1, 30 / 30 - 1, 20 / 40 - 1, 0, 10 / 50 - 1, 10 / 60 - 1]
    assert [*errors_of(models, "cuda")] == pytest.approx([*errors, 10 / 70 - 1, 10 / 80 - 1])
    assert factors_of(models[:1], "cpu") == {"float32": (20 / 11, 30 / 11)}


def test_a_calibration_is_kept_and_read_back(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert read("cpu") is None
    report = qk.cost(model(), qk.array("n", 30)).at(n=20)
    with pytest.raises(qk.CostError, match="this machine is not measured yet; measure it: qk"):
        report.predict()
    write(made_up(), place("cpu"))
    assert read("cpu") == made_up()
    assert report.predict() == report.predict(made_up())
    half = qk.cost(model().bfloat16(), qk.array("n", 30)).at(n=20)
    with pytest.raises(qk.CostError, match="measured float32, and the model computes in bfloat16"):
        half.predict()
    for text in (
        "{",
        "[]",
        '{"schema": 1}',
        '{"schema": 2}',
        '{"schema": 3}',
        json.dumps({"schema": 3, "operations": [{}]}),
    ):
        place("cpu").write_text(text)
        with pytest.raises(qk.CostError, match=r"is no calibration .*measure once more: qk cost"):
            read("cpu")


@pytest.mark.slow
def test_a_short_calibration_predicts_from_the_command_line(tmp_path, monkeypatch, capsys):
    found = calibrate(0.5, "cpu", tmp_path / "found.json")
    assert read(file=tmp_path / "found.json") == found
    assert all(one.seconds > 0 and one.work > 0 for one in found.operations)
    kinds = {one.kind for one in found.operations}
    assert {"product", "batched product", "attention", "attention backward", "aten.gelu"} <= kinds
    assert len(found.errors) >= 2
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    write(made_up(), place("cpu"))
    monkeypatch.chdir(tmp_path)
    text = "from torch import nn\ndef make():\n    return nn.Linear(30, 50)\n"
    (tmp_path / "m.py").write_text(text)
    words = ["cost", "m.py:make", "--input", "array(n,30)", "--at", "n=20", "--device", "cpu"]
    assert cli.run(words) == 0
    assert "predicted here" in capsys.readouterr().out
    assert cli.run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["predicted"]["error"] == pytest.approx(0.2)


def test_without_a_target_there_is_one_sentence(capsys):
    assert cli.run(["cost"]) == 2
    assert capsys.readouterr().err == (
        "qk: name a target, as in qk cost hf:gpt2; qk targets lists them\n"
    )


def test_an_unknown_device_cannot_be_measured():
    with pytest.raises(qk.CostError, match="`tpu` cannot be measured; name one of cpu, cuda"):
        calibrate(device="tpu")
