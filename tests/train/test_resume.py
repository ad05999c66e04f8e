"""A run that was stopped ends with the weights of one that was not."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.train.small import interrupt_at, small_config, weights

from querykey.train import ConfigError, TrainError, run
from querykey.train import checkpoints as store
from querykey.train.ranks import Ranks
from querykey.train.run import make_trainer


def equal(first, second) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


class Stop(Exception):
    pass


def stop_after(step):
    def tell(progress):
        if progress.step == step:
            raise Stop

    return tell


@pytest.mark.parametrize("stopped", [6, 10, 11])
def test_a_stopped_run_ends_bit_equal(tmp_path, stopped):
    whole = small_config(tmp_path / "whole")
    run(whole)
    parts = small_config(tmp_path / "parts")
    with pytest.raises(Stop):
        run(parts, stop_after(stopped))
    result = run(parts)
    assert result.finished
    assert equal(weights(whole), weights(parts))
    lines = [json.loads(line) for line in Path(parts.folder, "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))
    first = [json.loads(line) for line in Path(whole.folder, "log.jsonl").read_text().splitlines()]
    assert [line.get("loss") for line in lines] == [line.get("loss") for line in first]


def test_another_seed_gives_other_weights(tmp_path):
    configs = [small_config(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    for config in configs:
        run(config)
    assert not equal(*map(weights, configs))


def test_an_interrupted_run_saves_and_goes_on(tmp_path):
    whole, parts = small_config(tmp_path / "whole"), small_config(tmp_path / "parts")
    run(whole)

    result = run(parts, interrupt_at(3))
    assert (result.finished, result.step) == (False, 3)
    assert store.latest(Path(parts.folder, "checkpoints")).step == 3
    assert run(parts).finished
    assert equal(weights(whole), weights(parts))


def test_a_folder_takes_one_run_at_a_time(tmp_path):
    whole, config = small_config(tmp_path / "whole"), small_config(tmp_path / "parts")
    run(whole)
    refusals = []

    def begin_another(progress):
        if progress.step == 7:
            with pytest.raises(ConfigError) as refusal:
                run(config)
            refusals.append(str(refusal.value))

    run(config, begin_another)
    assert refusals == [
        f"another process is training in `{config.folder}`; wait until it has ended, or give this "
        f"run another folder"
    ]
    assert equal(weights(whole), weights(config))
    assert run(config).finished  # nobody holds the folder any more


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    config = small_config(tmp_path)
    run(config)
    folders = sorted(Path(config.folder, "checkpoints").iterdir())
    assert [folder.name for folder in folders] == ["step-00000010", "step-00000012"]
    expected = weights(config)
    file = next(folders[-1].glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))
    with pytest.warns(UserWarning, match="has a damaged file, .*; an older checkpoint is taken"):
        assert run(config).finished
    assert equal(weights(config), expected)


def test_a_bad_later_checkpoint_does_not_cost_the_good_one(tmp_path):
    config = small_config(tmp_path, keep=1, steps=10)
    run(config)
    checkpoints = Path(config.folder, "checkpoints")
    (checkpoints / "step-00000099").mkdir()
    with pytest.warns(UserWarning, match="has no readable manifest"):
        run(small_config(tmp_path, keep=1, steps=12))
    assert [path.name for path in checkpoints.iterdir()] == ["step-00000012"]


def test_a_parameter_without_gradients_does_not_keep_a_run_from_going_on(tmp_path):
    (tmp_path / "own.py").write_text(
        "from torch import nn\n"
        "class Own(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.table, self.out = nn.Embedding(64, 8), nn.Linear(8, 64)\n"
        "        self.unused = nn.Linear(3, 3)\n"
        "    def forward(self, x):\n"
        "        return self.out(self.table(x))\n"
    )
    flags = {"model-name": f"{tmp_path / 'own.py'}:Own", "dropout": 0}
    whole, parts = (small_config(tmp_path / name, **flags) for name in ("whole", "parts"))
    run(whole)
    run(parts, interrupt_at(3))
    assert run(parts).finished
    assert equal(weights(whole), weights(parts))


RUNNING = """
import torch
from torch import nn

class Running(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(64, 8), nn.Linear(8, 64)
        self.register_buffer("mean", torch.zeros(8), persistent=False)
        self.register_buffer("ones", torch.ones(8, 1), persistent=False)
        turns = torch.polar(torch.ones(8), torch.arange(8.0))
        self.register_buffer("turns", turns, persistent=False)
        self.register_buffer("ids", torch.zeros(1, 0, dtype=torch.long), persistent=False)
    def forward(self, ids):
        x = self.table(ids)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 1))
            self.ids = ids[:, : int(x.detach().abs().sum()) % 7]  # a cache of no fixed size
        return self.out((x * self.turns).imag - self.mean)
"""


def test_a_running_mean_that_is_not_in_the_state_dict_is_kept_too(tmp_path):
    (tmp_path / "own.py").write_text(RUNNING)
    name = f"{tmp_path / 'own.py'}:Running"
    whole, parts = (small_config(tmp_path / n, **{"model-name": name}) for n in ("whole", "parts"))
    run(whole)
    run(parts, interrupt_at(7))
    run(parts)
    found = weights(whole)
    assert equal(found, weights(parts))
    assert found["buffer.mean"].abs().max() > 0
    assert "buffer.ones" not in found


TURNED = """
import torch
from torch import nn

class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(256, 8)
        self.columns = nn.Parameter(torch.randn(256, 8).t())
        self.rows = nn.Parameter(torch.randn(2, 256))
        self.first_row = nn.Parameter(self.rows.data[0])
    def forward(self, ids):
        return self.table(ids) @ self.columns + self.rows[1] + self.first_row
"""


def test_parameters_in_any_layout_are_kept_and_written(tmp_path):
    (tmp_path / "own.py").write_text(TURNED)
    name = {"model-name": f"{tmp_path / 'own.py'}:Turned", "tokenizer": "bytes"}
    whole, parts = (small_config(tmp_path / n, **name) for n in ("whole", "parts"))
    run(whole)
    run(parts, interrupt_at(7))
    run(parts)
    assert equal(weights(whole), weights(parts))
    written = load_file(Path(whole.folder, "model.safetensors"))
    kept = weights(whole)
    assert all(torch.equal(tensor, kept[f"model.{name}"]) for name, tensor in written.items())
    assert set(written) == {"table.weight", "columns", "rows", "first_row"}


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_complex_buffers_stay_complex_in_every_precision(tmp_path, precision):
    (tmp_path / "own.py").write_text(RUNNING)
    flags = {"model-name": f"{tmp_path / 'own.py'}:Running", "precision": precision}
    model = make_trainer(small_config(tmp_path, **flags), Ranks()).model
    assert torch.equal(model.turns, torch.polar(torch.ones(8), torch.arange(8.0)))
    assert {p.dtype for p in model.parameters()} == {getattr(torch, precision)}
    assert model.mean.dtype == getattr(torch, precision)
    assert [n for n in model.state_dict() if n in ("mean", "ones", "turns")] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_let_a_run_save_and_stop(tmp_path, number):
    def tell(progress):
        if progress.step == 3:
            signal.raise_signal(number)

    before = signal.getsignal(number)
    assert not run(small_config(tmp_path), tell).finished
    assert store.latest(Path(tmp_path, "run", "checkpoints")).step == 3
    assert signal.getsignal(number) is before


def test_a_closed_terminal_is_ignored_where_the_caller_ignores_it(tmp_path):
    def tell(progress):
        signal.raise_signal(signal.SIGHUP)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run(small_config(tmp_path, steps=2), tell).finished
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_same_text_at_another_place_is_gone_on_with(tmp_path):
    whole, parts = small_config(tmp_path / "whole"), small_config(tmp_path / "parts")
    run(whole)
    run(parts, interrupt_at(3))
    moved = (tmp_path / "parts" / "text.txt").rename(tmp_path / "moved.txt")
    assert run(small_config(tmp_path / "parts", path=moved)).finished
    assert equal(weights(whole), weights(parts))


def test_a_text_that_has_changed_is_not_gone_on_with(tmp_path):
    run(small_config(tmp_path, steps=5))
    text = tmp_path / "text.txt"
    text.write_text(text.read_text().replace("fox", "xof"))
    with pytest.raises(TrainError, match=r"the data have changed since .*step-00000005` was saved"):
        run(small_config(tmp_path, steps=6))


def killed_at_random(folder: Path, steps: int, times: int, seed: int) -> int:
    """Start a run again and again, kill it after a random while until it ends; count the kills."""
    chance, kills = random.Random(seed), 0
    job = [str(folder), {"steps": steps, "save_every": 1}]
    command = [sys.executable, "-m", "tests.train.small", json.dumps([job])]
    checkpoints = folder / "run" / "checkpoints"
    while True:
        before = newest(checkpoints)
        with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
            while process.poll() is None and newest(checkpoints) == before:
                time.sleep(0.01)
            if kills < times:
                time.sleep(chance.random() * 0.2)
                process.kill()
            errors = process.communicate(timeout=300)[1].decode()
        assert newest(checkpoints) >= before, errors  # nothing that was saved is lost
        assert "damaged" not in errors
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 0, errors
            return kills
        kills += 1


def newest(folder: Path) -> str:
    return max((path.name for path in folder.glob("step-*")), default="")


@pytest.mark.parametrize(
    "times", [pytest.param(5, marks=pytest.mark.slow), pytest.param(25, marks=pytest.mark.full)]
)
def test_a_killed_run_always_resumes(tmp_path, times):
    steps = 20 * times  # many more than a run does between two kills
    assert killed_at_random(tmp_path / "killed", steps, times, seed=times) == times
    whole = small_config(tmp_path / "whole", steps=steps, save_every=1)
    run(whole)
    assert equal(weights(whole), weights(small_config(tmp_path / "killed", steps=steps)))


def test_a_loss_that_is_not_finite_stops_and_names_the_module(tmp_path):
    config = small_config(tmp_path, save_every=1)
    trainer = make_trainer(config, Ranks())
    broken = trainer.model.get_submodule("stack.blocks.1.mlp")

    def poison(module, inputs, output):
        return output * (float("nan") if trainer.step == 2 else 1)

    broken.register_forward_hook(poison)
    with pytest.raises(TrainError) as error:
        trainer.run()
    assert str(error.value).startswith("the loss is nan at step 3: `stack.blocks.1.mlp` is the")
    assert "the last good checkpoint is" in str(error.value)
    assert store.latest(Path(config.folder, "checkpoints")).step == 2


def test_a_gradient_that_is_not_finite_stops_before_the_weights_are_lost(tmp_path):
    config = small_config(tmp_path, save_every=1)
    trainer = make_trainer(config, Ranks())
    weight = trainer.model.get_submodule("stack.blocks.1.mlp").get_parameter("up.weight")
    weight.register_hook(lambda g: g * (float("inf") if trainer.step == 2 else 1))
    message = "the gradient of `stack.blocks.1.mlp.up.weight` is not finite at step 3; the last"
    with pytest.raises(TrainError, match=message):
        trainer.run()
    assert all(torch.isfinite(tensor).all() for tensor in weights(config).values())


def test_the_module_is_named_where_the_model_is_compiled(tmp_path):
    trainer = make_trainer(small_config(tmp_path), Ranks())
    trainer.run_learner = torch.compile(trainer.learner, backend="eager")
    trainer.advance()
    with torch.no_grad():  # finite weights, and an overflow on the way
        trainer.model.get_submodule("stack.blocks.1.mlp").get_parameter("up.weight").fill_(3e38)
    with pytest.raises(TrainError, match=r"at step 2: `stack.blocks.1.mlp\S*` is the first module"):
        trainer.advance()


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_a_run_has_gradients_where_its_caller_has_none(off, tmp_path):
    with off():
        run(small_config(tmp_path / "off", steps=2))
        assert torch.is_grad_enabled() is False
    run(small_config(tmp_path / "on", steps=2))
    assert equal(*(weights(small_config(tmp_path / name, steps=2)) for name in ("off", "on")))
