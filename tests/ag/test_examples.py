"""The examples run, and show what they say."""

import importlib.util
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_block_learns(capsys):
    assert load("ag_train_block").main(300) > 0.9
    assert "step  300" in capsys.readouterr().out


def test_the_watched_gradient(capsys):
    scores, values = load("ag_watch_a_gradient").main()
    assert (scores[..., :3] == 0).all()
    assert scores[..., 3].any()
    assert np.abs(scores.sum(axis=1)).max() < 1e-15
    assert (values[:, 1:] == 0).all()
    assert "finite differences agree" in capsys.readouterr().out


def test_the_drawing(tmp_path):
    load("ag_draw_the_graph").main(tmp_path / "block.svg")
    text = [t.text for t in ElementTree.parse(tmp_path / "block.svg").iter() if t.text]
    assert {"Wq", "Wk", "Wv", "Wh", "bh", "Wo", "bo", "attention(X)", "loss"} <= set(text)
