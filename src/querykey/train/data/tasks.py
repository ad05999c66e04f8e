"""Generated tasks with known answers: copying, associative recall, dates in many formats.

Sample `index` is drawn from random numbers that belong to it, so that a task of any size needs no
memory. A validation sample is never among the training samples.
"""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np

from querykey.train.config import DataConfig
from querykey.train.data.source import Data, DataError, Draw, Drawn, Facts, drawn_apart
from querykey.train.data.tokenizers import TokenizerMaker


def _generated(config: DataConfig, seed: int, draw: Draw, facts: Facts) -> Data:
    def split(name: str, count: int) -> Drawn:
        return Drawn(count, lambda index: drawn_apart(draw, seed, name, index))

    valid = min(max(config.samples // 10, 1), 1000)
    return Data(split("train", config.samples), split("valid", valid), facts)


def load_copy(config: DataConfig, seed: int, letters: int = 26) -> Data:
    """Return sequences that come twice, with a mark between; the second time is judged."""
    half = (config.length - 1) // 2
    if half < 1:
        raise DataError("copying needs data.length of at least 3: a letter, a mark, the letter")

    def draw(generator: np.random.Generator) -> dict[str, Any]:
        word = generator.integers(letters, size=int(generator.integers(1, half + 1)))
        tokens = np.concatenate([word, [letters], word])
        return {"tokens": tokens, "judged": np.arange(len(tokens)) > len(word)}

    return _generated(config, seed, draw, Facts(letters + 1, config.length))


def load_recall(config: DataConfig, seed: int) -> Data:
    """Return associative recall: pairs of a key and a value, then keys again, each with its value.

    The values that are asked are judged. With length L and Q queries there are (L - 2 Q) // 2
    pairs, of different keys among twice as many, and Q of these keys are asked.
    """
    queries = config.queries
    pairs = (config.length - 2 * queries) // 2
    if pairs < queries:
        raise DataError(
            f"associative recall needs data.length of at least {4 * queries}: for each of "
            f"{queries} queries a pair that was shown, a key, a value; got {config.length}"
        )
    keys, values = 2 * pairs, 32

    def draw(generator: np.random.Generator) -> dict[str, Any]:
        key = generator.permutation(keys)[:pairs]
        value = keys + generator.integers(values, size=pairs)
        asked = [generator.integers(pairs)] if queries == 1 else generator.permutation(pairs)
        order = np.concatenate([np.arange(pairs), asked[:queries]])
        tokens = np.stack([key, value], 1)[order].reshape(-1)
        places = np.arange(len(tokens))
        return {"tokens": tokens, "judged": (places > 2 * pairs) & (places % 2 == 1)}

    return _generated(config, seed, draw, Facts(keys + values, config.length))


MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


def written_date(date: datetime.date, generator: np.random.Generator) -> str:
    """Return a date in one of many formats that people write."""
    day, year, month = date.day, date.year, MONTHS[date.month - 1]
    weekday = DAYS[date.weekday()]
    ending = "th" if day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    formats = (
        f"{month} {day}, {year}",
        f"{day} {month} {year}",
        f"{month[:3]} {day} {year}",
        f"{day} {month[:3]} {year}",
        f"{day}{ending} of {month} {year}",
        f"{weekday}, {month} {day}, {year}",
        f"{weekday[:3]} {day} {month[:3]} {year}",
        f"{day:02d}.{date.month:02d}.{year}",
        f"{date.month}/{day}/{year}",
        f"{year}/{date.month:02d}/{day:02d}",
        f"{month.upper()} {day}, {year}",
        f"{day}-{month[:3].upper()}-{year}",
    )
    return formats[int(generator.integers(len(formats)))]


def load_dates(config: DataConfig, seed: int, make_tokenizer: TokenizerMaker) -> Data:
    """Return dates in many formats as sources, and as ISO 8601 as targets."""
    first = datetime.date(1900, 1, 1).toordinal()
    last = datetime.date(2099, 12, 31).toordinal()
    alphabet = "".join(MONTHS + DAYS) + "".join(MONTHS).upper() + "0123456789 ,./-thndrsof"
    tokenizer = make_tokenizer("characters", [alphabet], 0)
    longest = len("Wednesday, September 30, 2099")
    if config.length < longest:
        raise DataError(f"data.length is at least {longest} for dates; got {config.length}")

    def draw(generator: np.random.Generator) -> dict[str, Any]:
        date = datetime.date.fromordinal(int(generator.integers(first, last + 1)))
        source, target = written_date(date, generator), date.isoformat()
        return {"source": tokenizer.encode(source), "target": tokenizer.encode(target)}

    facts = Facts(tokenizer.size, config.length, tokenizer=tokenizer)
    return _generated(config, seed, draw, facts)
