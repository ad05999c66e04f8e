"""What `check` found, to read, to print and to store."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from importlib import metadata
from typing import TYPE_CHECKING, Any

from querykey.errors import QuerykeyError, WrongTypeError, visible
from querykey.laws.finding import Finding
from querykey.laws.printed import WIDTH, Heading, Marks, printed

if TYPE_CHECKING:
    from rich.text import Text

SCHEMA = 1  # of the JSON of `qk check`; a reader refuses any other


class SchemaError(QuerykeyError):
    """One sentence: a stored report has another schema than this version reads."""


class NoLawError(QuerykeyError, KeyError):
    """One sentence: a report has no finding of that law."""

    def __str__(self) -> str:
        return visible(self.args[0])  # a KeyError would show it in quotes


@dataclass(frozen=True)
class Report:
    """The findings of all laws on one target."""

    target: str
    kind: str
    laws: list[Finding]
    built: bool = True
    seconds: float = 0.0
    seed: int = 0
    weights: str = "both"
    versions: dict[str, str] = field(default_factory=dict)
    about: dict[str, str] = field(default_factory=dict)
    note: str = ""  # why it was not built or did not finish
    traceback: str | None = None  # of what was raised where it was not built or not understood

    def __post_init__(self):
        if not (isinstance(self.target, str) and isinstance(self.kind, str)):
            raise WrongTypeError(f"a report names a target and its kind; got {self.target!r}")
        if not (isinstance(self.laws, list) and all(isinstance(f, Finding) for f in self.laws)):
            raise WrongTypeError(f"the laws of a report are a list of findings; got {self.laws!r}")

    @property
    def violations(self) -> list[Finding]:
        """The laws that are broken."""
        return [finding for finding in self.laws if finding.verdict == "violated"]

    @property
    def failed(self) -> bool:
        """Whether it could not be run, wholly or in part."""
        return not self.built or any(f.verdict in ("error", "timeout") for f in self.laws)

    def law(self, name: str) -> Finding:
        """Return the finding of one law."""
        for finding in self.laws:
            if finding.law == name:
                return finding
        names = ", ".join(finding.law for finding in self.laws)
        raise NoLawError(f"no law `{name}` was tried; tried were {names}")

    def as_json(self) -> dict[str, Any]:
        """Return plain values, as `qk check --json` prints them."""
        return {
            "schema": SCHEMA,
            "target": self.target,
            "kind": self.kind,
            "built": self.built,
            "seconds": round(self.seconds, 3),
            "versions": self.versions,
            "seed": self.seed,
            "weights": self.weights,
            "laws": [finding.as_json() for finding in self.laws],
            "about": self.about,
            "note": self.note,
            "traceback": self.traceback,
        }

    @staticmethod
    def from_json(values: dict[str, Any]) -> Report:
        """Return the report that `as_json` wrote; a SchemaError refuses another version's.

        Fields that this version does not know are passed over: the same schema may gain some.
        """
        check_schema(values)
        known = {f.name for f in fields(Report)} - {"laws"}
        laws = [Finding.from_json(finding) for finding in values["laws"]]
        return Report(laws=laws, **{k: v for k, v in values.items() if k in known})

    def __str__(self) -> str:
        return "\n".join(paragraph.plain for paragraph in self.paragraphs())

    def paragraphs(self, marks: Marks | None = None, width: int = WIDTH) -> list[Text]:
        """Return what a terminal shows: what the model was taken for, its breaches, the rest."""
        return printed(self.heading, self.laws, marks or Marks(), width)

    @property
    def heading(self) -> Heading:
        """What stands above the findings where the report is printed."""
        return Heading(self.target, self.kind, self.about, self.note, self.built)


def check_schema(values: dict[str, Any]) -> None:
    """Raise a SchemaError unless plain values have the schema that this version reads."""
    schema = values.get("schema")
    if schema != SCHEMA:
        raise SchemaError(
            f"a report of schema {schema!r} was found, and this version of querykey reads schema "
            f"{SCHEMA}; write it anew with `qk check`"
        )


def versions() -> dict[str, str]:
    """Return the versions of the packages that a report depends on, as far as they are loaded."""
    return installed(["querykey", *(n for n in ("torch", "transformers") if n in sys.modules)])


def installed(packages: Iterable[str]) -> dict[str, str]:
    """Return versions by package; a package that is used without being installed is left out."""
    numbers = {}
    for package in packages:
        try:
            numbers[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return numbers
