"""Training: objectives, data, a loop whose runs resume exactly, and many ranks.

    from querykey.train import read_config, run
    result = run(read_config("config.toml"))

A run is a folder: its config, a log of JSON lines, checkpoints, and what it ran on.
"""

from querykey.train.command import check_command, listing, summary, train_command
from querykey.train.config import ConfigError, DataConfig, TrainConfig, read_config
from querykey.train.data.images import load_digits, load_mnist
from querykey.train.data.source import Data, DataError
from querykey.train.loop import Progress, Result, Trainer, TrainError
from querykey.train.parts import load_data
from querykey.train.report import write_report
from querykey.train.run import run

__all__ = [
    "ConfigError",
    "Data",
    "DataConfig",
    "DataError",
    "Progress",
    "Result",
    "TrainConfig",
    "TrainError",
    "Trainer",
    "check_command",
    "listing",
    "load_data",
    "load_digits",
    "load_mnist",
    "read_config",
    "run",
    "summary",
    "train_command",
    "write_report",
]
