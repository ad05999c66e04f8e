"""What goes wrong outside of the model: a full disk, a rank that dies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.train.small import small_config
from tests.train.test_ranks import free_port

from querykey.train import run
from querykey.train.checkpoints import CheckpointError, latest


def test_a_full_disk_keeps_the_last_good_checkpoint(tmp_path):
    """The limit on a file's size stands for the disk's: the write itself fails."""
    config = small_config(tmp_path, steps=5)
    run(config)
    code = (
        "import resource, sys, tests.train.small as small\n"
        "from pathlib import Path\n"
        "from querykey.train import run\n"
        "import torch; torch.set_num_threads(1)\n"
        "config = small.small_config(Path(sys.argv[1]), steps=9, save_every=6)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))\n"
        "run(config)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "CheckpointError: the checkpoint of step 6 could not be written" in last
    assert last.endswith("File too large")
    folder = Path(config.folder, "checkpoints")
    assert latest(folder).step == 5
    assert [path.name for path in folder.iterdir()] == ["step-00000005"]
    assert run(small_config(tmp_path, steps=9)).finished


def test_a_checkpoint_of_another_version_or_without_a_file_is_refused(tmp_path):
    from querykey.train.checkpoints import verified

    config = small_config(tmp_path, steps=5)
    run(config)
    folder = Path(config.folder, "checkpoints", "step-00000005")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest | {"schema": 2}))
    with pytest.raises(CheckpointError, match="has schema 2, and this version reads 1"):
        verified(folder)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    next(folder.glob("*.safetensors")).unlink()
    with pytest.raises(CheckpointError, match="lacks its file"):
        verified(folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"has no readable manifest.json"):
        verified(folder)


@pytest.mark.slow
def test_the_others_end_when_a_rank_dies(tmp_path):
    words = json.dumps([[str(tmp_path), {"steps": 100000, "save_every": 0}]])
    ranks = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.train.small", words],
            env=os.environ | ranks | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    log = tmp_path / "run" / "log.jsonl"
    while not (log.exists() and log.read_text().count("\n") > 3):
        assert processes[0].poll() is None
        time.sleep(0.1)
    processes[1].send_signal(signal.SIGKILL)
    processes[1].communicate()
    errors = processes[0].communicate(timeout=60)[1].decode()
    assert processes[0].returncode != 0
    assert "TrainError: rank 0 lost another rank after step " in errors
