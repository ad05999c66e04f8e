"""Rotary frequencies stretched to longer texts, as the entries of config.json describe them."""

from __future__ import annotations

import math
from dataclasses import MISSING, asdict, dataclass, fields

import numpy as np

from querykey.attention import Rotary
from querykey.errors import QuerykeyError
from querykey.models.folders.families.family import FolderError, Settings


@dataclass(frozen=True)
class LinearScaling:
    """Every position, and so every frequency, divided by `factor`."""

    factor: float

    def __post_init__(self):
        _above_zero(factor=self.factor)

    def __call__(self, frequencies: np.ndarray) -> np.ndarray:
        """Return the frequencies divided by the factor."""
        return frequencies / self.factor


@dataclass(frozen=True)
class Llama3:
    """Low frequencies divided by `factor`, high ones kept, a blend between (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self):
        _above_zero(factor=self.factor)
        if self.low_freq_factor == self.high_freq_factor:
            raise QuerykeyError(
                f"`low_freq_factor` and `high_freq_factor` are both {self.low_freq_factor}, "
                f"and the frequencies between them are blended"
            )

    def __call__(self, frequencies: np.ndarray) -> np.ndarray:
        """Return the frequencies; those of long waves are divided by the factor."""
        turns = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = np.clip(kept, 0, 1)
        return kept * frequencies + (1 - kept) * frequencies / self.factor


@dataclass(frozen=True)
class Yarn:
    """A blend of kept and divided frequencies by how often each turns (Peng et al., 2023)."""

    factor: float
    original_max_position_embeddings: int
    rope_theta: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def __post_init__(self):
        _above_zero(factor=self.factor)

    def __call__(self, frequencies: np.ndarray) -> np.ndarray:
        """Return the frequencies; those that turn seldom are divided by the factor."""
        low, high = (
            self._pair(beta, len(frequencies)) for beta in (self.beta_fast, self.beta_slow)
        )
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * len(frequencies) - 1)
        high += 0.001 if low == high else 0
        divided = np.clip((np.arange(len(frequencies)) - low) / (high - low), 0, 1)
        return divided * frequencies / self.factor + (1 - divided) * frequencies

    def _pair(self, turns: float, pairs: int) -> float:
        """Return the number of the pair that turns this often within the original length."""
        length = self.original_max_position_embeddings
        return pairs * math.log(length / (turns * 2 * math.pi)) / math.log(self.rope_theta)


def _above_zero(**settings: float) -> None:
    for name, value in settings.items():
        if not value > 0:
            raise QuerykeyError(f"`{name}` of rotary positions is above 0; got {value}")


KINDS = {"linear": LinearScaling, "llama3": Llama3, "yarn": Yarn}


def read_rope(settings: Settings) -> tuple[Rotary, float]:
    """Return the rotation that config.json asks for, and the factor of all scores with it."""
    # Where both are there, `transformers` reads nothing of `rope_parameters`.
    field = "rope_scaling" if settings.get("rope_scaling") else "rope_parameters"
    rope = dict(settings.get(field) or {})
    base = float(rope.get("rope_theta") or settings.get("rope_theta") or 10000.0)
    _above_zero(rope_theta=base)
    share = rope.get("partial_rotary_factor") or settings.get("partial_rotary_factor") or 1.0
    if share != 1:  # `transformers` leaves it unread for these models, so it cannot be meant
        raise FolderError(
            f"config.json: `partial_rotary_factor` is {share!r}; these models turn every feature"
        )
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return Rotary(base), 1.0
    if kind not in KINDS:
        kinds = ", ".join(("default", *KINDS))
        raise FolderError(
            f"config.json: `{field}` is of the type {kind!r}, "
            f"which is not one that we have ({kinds})"
        )
    entries = rope | {"rope_theta": base}
    name = "original_max_position_embeddings"
    if settings.get(name):  # beside `rope_scaling` it counts before one in it
        entries[name] = settings[name]
    entries.setdefault(name, settings["max_position_embeddings"])
    scaling = _scaling(
        kind, {name: entry for name, entry in entries.items() if entry is not None}, field
    )
    return Rotary(base, scaling=scaling), _sharpness(rope) if kind == "yarn" else 1.0


def _scaling(kind: str, entries: Settings, name: str) -> LinearScaling | Llama3 | Yarn:
    parts = fields(KINDS[kind])
    for part in parts:
        if part.default is MISSING and part.name not in entries:
            raise FolderError(f"config.json: `{name}` of the type {kind!r} lacks `{part.name}`")
    return KINDS[kind](**{part.name: entries[part.name] for part in parts if part.name in entries})


def _sharpness(rope: Settings) -> float:
    """Return the square of the factor that YaRN gives to queries and keys each."""
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"]) ** 2
    logarithm = 0.1 * math.log(max(rope["factor"], 1.0))
    scale, over = rope.get("mscale"), rope.get("mscale_all_dim")
    if scale and over:
        return ((scale * logarithm + 1.0) / (over * logarithm + 1.0)) ** 2
    return (logarithm + 1.0) ** 2


def write_rope(rotary: Rotary) -> Settings:
    """Return the entry `rope_parameters` of config.json for our rotation."""
    settings: Settings = {"rope_theta": rotary.base, "rope_type": "default"}
    if isinstance(rotary.scaling, LinearScaling | Llama3 | Yarn):
        name = next(name for name, kind in KINDS.items() if isinstance(rotary.scaling, kind))
        settings |= {"rope_type": name} | asdict(rotary.scaling)
    return settings
