"""What an experiment found, as plain values: numbers with their uncertainty, and figures' data.

    Measurement({"output": exact((1, 4, 3)), "slope": sampled([0.99, 1.02, 1.01])}, figures=(...))

It goes to JSON and back, so that claims can be judged again without measuring again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist, fmean, stdev
from typing import Any

from querykey.errors import QuerykeyError, WrongTypeError
from querykey.show import Series, cell_chart, line_chart
from querykey.words import check_fields, checked

# Student's t for 1, 2, ... degrees of freedom: 95 % of a sample's means are this many standard
# errors from the truth, or fewer.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True)
class Measured:
    """One number per seed, or a single value where nothing is random; or why there is none."""

    samples: tuple[Any, ...]
    reason: str = ""  # why nothing was measured

    def __post_init__(self):
        check_fields(self)

    @property
    def numeric(self) -> bool:
        """Whether the samples are numbers, which have a mean."""
        return all(isinstance(s, int | float) and not isinstance(s, bool) for s in self.samples)

    @property
    def value(self) -> Any:
        """The mean of the samples, or the only one where there is one."""
        first, *others = self.samples
        return fmean(self.samples) if others else first

    @property
    def uncertainty(self) -> float:
        """Half the 95 % confidence interval of the mean; 0 where nothing is random."""
        count = len(self.samples)
        if count < 2:
            return 0.0
        return _student(count - 1) * stdev(self.samples) / math.sqrt(count)

    def __str__(self) -> str:
        if self.reason:
            return "not measured"
        if len(self.samples) == 1:
            return written(self.value)
        if not self.uncertainty:
            return f"{written(self.value)} ({len(self.samples)} seeds alike)"
        return f"{written(self.value)} ± {self.uncertainty:.2g} ({len(self.samples)} seeds)"


def _student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t: from a table, or by its expansion in 1/freedom."""
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    z = NormalDist().inv_cdf(0.975)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return z + (z**3 + z) / (4 * freedom) + second


@checked
def exact(value: Any) -> Measured:
    """Return a value that is the same whatever the seed: a count, a set of names, a formula."""
    return Measured((value,))


@checked
def sampled(values: Iterable[Any]) -> Measured:
    """Return one number per seed; there are at least two, or no uncertainty could be told."""
    try:
        samples = tuple(float(value) for value in values)
    except (TypeError, ValueError, RuntimeError):
        raise WrongTypeError(f"a sample is of numbers; got {values!r}") from None
    if len(samples) < 2:
        raise QuerykeyError(f"a sample has a number for each of at least 2 seeds; got {samples}")
    return Measured(samples)


@checked
def unmeasured(reason: str) -> Measured:
    """Return the reason why a value was not measured; claims about it stay open."""
    return Measured((), reason)


def written(value: Any) -> str:
    """Return a value as a person reads it."""
    if isinstance(value, tuple):
        return ", ".join(written(part) for part in value) or "none"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


@dataclass(frozen=True)
class Chart:
    """The data of a line chart; `log` makes both axes logarithmic.

    Lines that are named in `rings` are drawn as rings around their points: what others are compared
    with, such as a theory.
    """

    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[Sequence[float]]]  # name to points (x, y)
    log: bool = False
    rings: Sequence[str] = ()

    def __post_init__(self):
        check_fields(self)

    def svg(self) -> str:
        """Return the drawing."""
        series = [
            Series(name, [(x, y) for x, y in line], name not in self.rings)
            for name, line in self.lines.items()
        ]
        return line_chart(series, self.x, self.y, self.title, self.log)


@dataclass(frozen=True)
class Grid:
    """The data of a grid of cells, each darker the larger its number."""

    title: str
    values: Sequence[Sequence[float]]
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()

    def __post_init__(self):
        check_fields(self)

    def svg(self) -> str:
        """Return the drawing."""
        return cell_chart(self.values, self.rows, self.columns, self.title)


@dataclass(frozen=True)
class Measurement:
    """All that one experiment measured, by name, and its figures by the name of their files."""

    values: Mapping[str, Measured]
    figures: Mapping[str, Chart | Grid]

    def __post_init__(self):
        check_fields(self)

    def __getitem__(self, name: str) -> Measured:
        if name not in self.values:
            raise KeyError(f"nothing named `{name}` was measured ({', '.join(self.values)})")
        return self.values[name]

    def as_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` reads back."""
        return {
            "values": {name: asdict(value) for name, value in self.values.items()},
            "figures": {
                name: {"kind": type(figure).__name__, **asdict(figure)}
                for name, figure in self.figures.items()
            },
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Measurement:
        """Return the measurement that `as_json` wrote."""
        kinds = {"Chart": Chart, "Grid": Grid}
        return cls(
            {
                name: Measured(tuple(_frozen(s) for s in value["samples"]), value["reason"])
                for name, value in plain["values"].items()
            },
            {
                name: kinds[figure["kind"]](**{k: v for k, v in figure.items() if k != "kind"})
                for name, figure in plain["figures"].items()
            },
        )


def _frozen(value: Any) -> Any:
    """Return lists, which is what JSON makes of tuples, as tuples again."""
    return tuple(_frozen(part) for part in value) if isinstance(value, list) else value
