"""Predictions from a calibration whose numbers are made up, so that the times are known by hand."""

import json
from dataclasses import replace

import pytest
from torch import nn

import querykey as qk
from querykey import cli
from querykey.costs.timing.calibration import Calibration, calibrate, place, read, write
from querykey.costs.timing.prediction import Rates, TimedOperation, predict

NONE = dict.fromkeys(("plain", "recorded", "backward", "view", "module", "mixed"), 0.0)


def made_up(**overheads):
    """Products at 1e9 FLOP/s, elementwise functions at 1e8 bytes/s."""
    shapes = [(2.0, 4.0, 4.0), (10.0, 4.0, 4.0), (6.0, 8.0, 2.0)]
    products = [TimedOperation("product", shape, 1e6, 1e-3) for shape in shapes]
    bytes_ = [TimedOperation("aten.mul", (n,), 2.0**n, 2.0**n / 1e8) for n in (4, 10, 30)]
    return Calibration(
        "cpu",
        "made up",
        1,
        "float32",
        "2",
        (*products, *bytes_),
        NONE | overheads,
        (1.0, 1.0),
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
    plain, slow = report.predict(made_up()), report.predict(replace(made_up(), factors=(2.0, 3.0)))
    assert slow.forward == pytest.approx(2 * plain.forward)
    assert slow.step == pytest.approx(3 * plain.step)


def test_a_gpu_runs_while_it_is_started():
    report = qk.cost(model(), qk.array("n", 30)).at(n=20)
    busy = replace(made_up(), device="cuda")
    assert report.predict(busy).forward == pytest.approx(report.predict(made_up()).forward)
    slow = replace(made_up(plain=1.0), device="cuda")
    assert report.predict(slow).forward == pytest.approx(2)  # two operations are started
    assert predict({}, {}, 0, Rates(()), NONE, {}, "cuda") == (0, 0)


def test_rates_lie_between_those_of_near_shapes():
    points = [TimedOperation("product", (x, 5.0), 1e6, s) for x, s in ((1.0, 1e-3), (9.0, 1e-4))]
    rates = Rates(points)
    assert rates.seconds("product", (1.0, 5.0), 1e6) == pytest.approx(1e-3, rel=0.01)
    assert rates.seconds("product", (9.0, 5.0), 2e6) == pytest.approx(2e-4, rel=0.01)
    assert 1e-4 < rates.seconds("product", (5.0, 5.0), 1e6) < 1e-3
    lines = Rates([TimedOperation("aten.mul", (0.0,), w, s) for w, s in ((10.0, 1.0), (20.0, 3.0))])
    found = [lines.seconds("aten.mul", (0.0,), work) for work in (1, 10, 15, 20, 40)]
    assert found == pytest.approx([1, 1, 2, 3, 6])
    assert lines.seconds("aten.unheard_of", (0.0,), 15) == pytest.approx(2)


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
        '{"schema": 2}',
        '{"schema": 1}',
        json.dumps({"schema": 1, "operations": [{}]}),
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
