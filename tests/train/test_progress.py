"""The progress line: the share of the peak compares like with like."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from tests.train.small import small_config

from querykey.cli import run as qk
from querykey.train import Progress, Result, command, progress
from querykey.train.ranks import Ranks
from querykey.train.run import make_trainer


class Terminal:
    def isatty(self):
        return True


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float64"])
def test_the_peak_is_measured_in_the_precision_of_the_products(tmp_path, monkeypatch, precision):
    trainer = make_trainer(small_config(tmp_path, precision=precision), Ranks())
    asked = []
    monkeypatch.setattr(progress, "matrix_rate", lambda device, dtype: asked.append(dtype) or 1.0)
    monkeypatch.setattr(progress.sys, "stderr", Terminal())
    progress.ProgressLine(trainer)
    assert asked == [getattr(torch, precision)]


def test_the_line_says_how_far_how_good_how_fast_and_how_long_yet(tmp_path, monkeypatch, capsys):
    line = progress.ProgressLine(make_trainer(small_config(tmp_path), Ranks()))
    line.show(Progress(2, 1.23456, 0.1, 0.1, 600, 9.0))
    assert capsys.readouterr().err == ""  # no terminal: a line now and then
    line.shown -= 60
    line.show(Progress(3, 1.23456, 0.1, 0.1, 600, 9.0))
    assert capsys.readouterr().err == "step 3/12  loss 1.235  66.7 tokens/s  0:01:21 left\n"
    monkeypatch.setattr(progress, "matrix_rate", lambda device, dtype: 1e6)
    monkeypatch.setattr(progress.sys, "stderr", Terminal())
    line = progress.ProgressLine(make_trainer(small_config(tmp_path), Ranks()))
    drawn = []
    monkeypatch.setattr(line, "_draw", lambda step, words: drawn.append(words))
    line.flops = 45e5
    line.show(Progress(3, 1.23456, 0.1, 0.1, 600, 9.0))
    assert drawn == ["loss 1.235  66.7 tokens/s  50% of peak"]
    columns = [type(column).__name__ for column in progress._new_bar().columns]
    assert {"MofNCompleteColumn", "TimeRemainingColumn"} <= set(columns)


def test_the_work_of_a_step_is_that_of_its_products(tmp_path):
    trainer = make_trainer(small_config(tmp_path, batch=1, pieces=1), Ranks())
    width, tokens, letters = 16, 13, trainer.data.facts.vocabulary
    products = 2 * tokens * (2 * 12 * width**2 + width * letters)  # two blocks, and the scores
    attention = 2 * 2 * 2 * tokens**2 * width
    # The fused kernel computes the scores again on its way back: five products, not four.
    forward, backward = products + attention, 2 * products + 2.5 * attention
    assert progress.step_flops(trainer) == forward + backward


def test_a_step_has_the_pieces_that_its_batch_can_be_cut_into(tmp_path):
    one, many = (
        make_trainer(small_config(tmp_path / str(n), batch=3, pieces=n), Ranks()) for n in (3, 99)
    )
    assert progress.step_flops(one) == progress.step_flops(many) > 0


@pytest.mark.parametrize("rank", [0, 1])
def test_of_several_ranks_the_first_alone_says_how_the_run_ended(monkeypatch, capsys, rank):
    """Processes that trained together, without the training."""
    result = Result("runs/both", 3, True, {"loss": 0.5})

    @contextmanager
    def prepared(config):
        yield SimpleNamespace(ranks=Ranks(rank, 2))

    monkeypatch.setattr(command, "prepared", prepared)
    monkeypatch.setattr(
        command, "ProgressLine", lambda trainer: nullcontext(SimpleNamespace(show=0))
    )
    monkeypatch.setattr(command, "carry_out", lambda trainer, tell: result)
    assert qk(["train", "copy"]) == 0
    said = "runs/both: step 3, done; validation loss 0.5000\n"
    assert capsys.readouterr().out == (said if rank == 0 else "")
