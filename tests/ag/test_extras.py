"""The engine without its extras: the same gradients, and no file of it that asks for one."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.ag.test_document import DOCUMENT
from tests.house.source import SOURCE, our_imports

import querykey.ag as ag
from querykey.ag import nn
from querykey.ag.hooks import Hooks, hooks

REMOVE = """
import sys, types
empty = types.ModuleType("querykey.ag.extras")  # it has no path, so that nothing in it is found
empty.install, empty.keep_pages = (lambda: None), (lambda: False)
sys.modules["querykey.ag.extras"] = empty
"""
TRAIN = f"""
import sys
import numpy as np
import querykey.ag as ag
from querykey.ag import nn
exec({DOCUMENT!r})
np.random.seed(0)
block, X = TransformerBlock(16, 32), np.random.randn(8, 32, 16)
block.att.Wq.data *= 0.1
losses, sgd = [], ag.optim.SGD(block, lr=0.01)
for _ in range(4):
    loss = nn.BinaryCrossEntropyLoss()(block(X)[:, 3, 0], np.arange(8) % 2)
    sgd.zero_grad()
    loss.backward()
    sgd.step()
    losses.append(loss.item())
grads = {{w.label: w.grad for w in nn.parameters(block)}}
np.savez(sys.argv[1], losses=losses, **grads)
extras = [name for name in sys.modules if name.startswith("querykey.ag.extras.")]
print(*[name for name in extras if name.count(".") == 3])
"""


def trained(code: str, path: Path) -> tuple[dict[str, np.ndarray], list[str]]:
    """What the document's block learns in a process of its own, and the extras it has loaded."""
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(np.load(path)), done.stdout.split()


def test_the_documents_block_trains_alike_without_extras(tmp_path):
    full, loaded = trained(TRAIN, tmp_path / "full.npz")
    bare, left = trained(REMOVE + TRAIN, tmp_path / "bare.npz")
    assert len(loaded) == 5
    assert left == []
    assert full.keys() == bare.keys() == {"losses", "Wq", "Wk", "Wv", "Wh", "bh", "Wo", "bo"}
    assert full["losses"][-1] < full["losses"][0]
    for name, grad in full.items():
        assert np.abs(grad).max() > 0
        np.testing.assert_allclose(bare[name], grad, rtol=1e-10, atol=1e-13, err_msg=name)


def test_the_engine_asks_for_its_extras_in_one_place():
    asked = {
        (found.file, found.line)
        for found in our_imports(SOURCE)
        if found.file.parts[0] == "ag" and found.file.parts[1] != "extras"
        if found.parts[:3] == ["querykey", "ag", "extras"]
    }
    assert [file for file, _ in asked] == [Path("ag/__init__.py")]


@pytest.mark.parametrize("hook", ["small_gradient", "watch", "namespace"])
def test_every_hook_may_be_left_at_its_default(hook, monkeypatch):
    rng = np.random.default_rng(0)
    x, block = rng.standard_normal((8, 32, 16)), nn.TransformerBlock(16, 32, 2, rng=rng)
    grads = []
    for _ in range(2):
        block.zero_grad()
        ag.sum(block(ag.Tensor(x) * 1.0)[:, 3, 0] ** 2).backward()
        grads.append([w.grad for w in block.parameters()])
        assert getattr(hooks, hook) is not getattr(Hooks, hook) or len(grads) == 2
        monkeypatch.setattr(hooks, hook, getattr(Hooks, hook))
    for one, other in zip(*grads, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-13)


def test_without_a_watch_a_changed_array_is_not_noticed(monkeypatch):
    monkeypatch.setattr(hooks, "watch", Hooks.watch)
    w = ag.Tensor([1.0, 2.0])
    y = ag.sum(w * w)
    w.data[0] = 5.0
    y.backward()
    np.testing.assert_array_equal(w.grad, [10.0, 4.0])
