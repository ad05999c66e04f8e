"""A claim, and how a measurement is judged against it: confirmed, corrected or open.

    claim = Claim("E5", "Var[q.k] grows as d^{value}", 2, of="exponent of d", within=Equal(0.1))
    judge(claim, measurement).verdict                       # corrected: 1.002 ± 0.006
    judge(replace(claim, value=1), measurement).verdict     # confirmed

The number that a document states is `value`, apart from its sentence, so that the same measurement
can be judged against another number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from querykey.lab.measurement import Measured, Measurement, written
from querykey.words import check_fields, checked

Verdict = Literal["confirmed", "corrected", "open"]


@dataclass(frozen=True)
class Equal:
    """The measured number equals the claimed one, or lies at most `within` from it."""

    within: float = 0.0

    def __post_init__(self):
        check_fields(self)

    def margin(self, measured: float, claimed: float) -> float:
        """Return by how much the claim holds; below 0, by how much it fails."""
        return self.within - abs(measured - claimed)

    def __str__(self) -> str:
        return f"within {self.within:g} of" if self.within else "exactly"


@dataclass(frozen=True)
class Near:
    """The measured number differs from the claimed one by at most a `share` of it."""

    share: float

    def __post_init__(self):
        check_fields(self)

    def margin(self, measured: float, claimed: float) -> float:
        """Return by how much the claim holds; below 0, by how much it fails."""
        return self.share * abs(claimed) - abs(measured - claimed)

    def __str__(self) -> str:
        return f"within {100 * self.share:g} % of"


@dataclass(frozen=True)
class AtMost:
    """The measured number is the claimed one or less."""

    def margin(self, measured: float, claimed: float) -> float:
        """Return by how much the claim holds; below 0, by how much it fails."""
        return claimed - measured

    def __str__(self) -> str:
        return "at most"


@dataclass(frozen=True)
class AtLeast:
    """The measured number is the claimed one or more."""

    def margin(self, measured: float, claimed: float) -> float:
        """Return by how much the claim holds; below 0, by how much it fails."""
        return measured - claimed

    def __str__(self) -> str:
        return "at least"


@dataclass(frozen=True)
class Claim:
    """One statement of a document: a sentence, and the number (or set of names) that it states."""

    row: str  # as in the ledger, such as "E5"
    says: str  # the sentence; {value} stands where the number stands
    value: Any
    of: str  # the measured value that it is about, by name
    within: Equal | Near | AtMost | AtLeast = Equal()
    right: str = ""  # what is right and why, where the document is wrong or says too little

    def __post_init__(self):
        check_fields(self)

    def __str__(self) -> str:
        return self.says.replace("{value}", written(self.value))

    @property
    def sentence(self) -> str:
        """The claim as a sentence of a page: with a capital letter, where it begins with a word."""
        text = str(self)
        first = text.split(" ")[0].rstrip(",:")
        word = first == "a" or (len(first) > 1 and first.isalpha() and first.islower())
        return f"{text[0].upper() if word else text[0]}{text[1:]}."


@dataclass(frozen=True)
class Part:
    """A claim beside what was measured, the verdict, and its reason in a sentence."""

    claim: Claim
    measured: Measured
    verdict: Verdict
    reason: str

    def __post_init__(self):
        check_fields(self)

    @property
    def capital_reason(self) -> str:
        """The reason with a capital letter, as a sentence begins."""
        return self.reason[:1].upper() + self.reason[1:]

    def __str__(self) -> str:
        return f"{self.claim.row} {self.verdict}: {self.claim} ({self.reason})"


@checked
def judge(claim: Claim, measurement: Measurement) -> Part:
    """Return the verdict of a measurement on a claim.

    Confirmed: the whole confidence interval of what was measured lies where the claim holds.
    Corrected: all of it lies where the claim fails. Open: it reaches over the border, or nothing
    could be measured.
    """
    measured = measurement[claim.of]
    if measured.reason:
        return Part(claim, measured, "open", measured.reason)
    margin, uncertainty = _margin(claim, measured), measured.uncertainty
    threshold = f"measured {measured}, claimed {claim.within} {written(claim.value)}"
    if margin >= uncertainty:
        return Part(claim, measured, "confirmed", threshold)
    if margin < -uncertainty:
        return Part(claim, measured, "corrected", threshold)
    if not uncertainty:
        return Part(claim, measured, "open", f"{threshold}, which cannot be compared")
    low, high = (written(measured.value + side * uncertainty) for side in (-1, 1))
    interval = f"the interval from {low} to {high} reaches over that border, so it stays open"
    return Part(claim, measured, "open", f"{threshold}: {interval}")


def _margin(claim: Claim, measured: Measured) -> float:
    """Return by how much a claim holds; what is no number is equal or not."""
    if measured.numeric and isinstance(claim.value, int | float):
        return claim.within.margin(measured.value, claim.value)
    return 0.0 if measured.value == claim.value else -1.0


def verdict_of_row(parts: list[Part]) -> Verdict:
    """Return corrected if any part is, else open if any part is (or there is none)."""
    verdicts = {part.verdict for part in parts}
    if "corrected" in verdicts:
        return "corrected"
    return "open" if "open" in verdicts or not parts else "confirmed"


def judge_all(claims: tuple[Claim, ...], measurement: Measurement) -> dict[str, list[Part]]:
    """Return the parts of every row that the claims belong to."""
    rows: dict[str, list[Part]] = {}
    for claim in claims:
        rows.setdefault(claim.row, []).append(judge(claim, measurement))
    return rows
