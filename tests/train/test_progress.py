"""The progress line: the share of the peak compares like with like."""

import pytest
import torch
from tests.train.small import small_config

from querykey.train import progress
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


def test_a_step_has_the_pieces_that_its_batch_can_be_cut_into(tmp_path):
    one, many = (
        make_trainer(small_config(tmp_path / str(n), batch=3, pieces=n), Ranks()) for n in (3, 99)
    )
    assert progress.step_flops(one) == progress.step_flops(many) > 0
