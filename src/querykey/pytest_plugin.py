"""The pytest plugin: `pytest --qk file.py:factory` tries the laws, and the fixture `lawful`.

Where neither is used it adds one option and one fixture, and imports nothing else of querykey.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options `--qk` and `--qk-law`."""
    group = parser.getgroup("querykey", "laws of attention models")
    group.addoption(
        "--qk",
        action="append",
        default=[],
        metavar="TARGET",
        help="also try the laws on this target, as `qk check` does; may be repeated",
    )
    group.addoption(
        "--qk-law",
        action="append",
        default=[],
        metavar="LAW",
        help="with --qk: only this law, or those that begin so; may be repeated",
    )


@pytest.fixture
def lawful() -> Callable[..., None]:
    """Return a function that fails the test where a model breaks a law.

    `lawful(model, example=None, kind=None, laws=None)`, as `querykey.laws.assert_lawful`.
    """
    from querykey.laws import assert_lawful

    return assert_lawful


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add a test per target and law of `--qk`, in front of what `-k` and `-m` choose from."""
    targets = config.getoption("--qk")
    if targets:
        items.extend(item for name in targets for item in _tests(session, name))


def _tests(session: pytest.Session, name: str) -> Iterator[pytest.Item]:
    """Yield the tests of one target."""
    from querykey.errors import QuerykeyError
    from querykey.laws import LAWS, laws_named

    try:
        chosen = [law for n in session.config.getoption("--qk-law") or () for law in laws_named(n)]
    except QuerykeyError as error:
        raise pytest.UsageError(str(error)) from error
    laws = [law.name for law in chosen or LAWS]
    target = CheckedTarget.from_parent(session, name=name, nodeid=name)
    target.laws = list(dict.fromkeys(laws))
    yield from target.collect()


class CheckedTarget(pytest.Collector):
    """One target; it is built and checked when the first of its tests runs."""

    laws: list[str]

    def collect(self) -> list[pytest.Item]:
        """Return a test per law."""
        return [TriedLaw.from_parent(self, name=law) for law in self.laws]

    @cached_property
    def report(self) -> Any:
        """The report of all the laws, in a process of their own."""
        from querykey.laws import check_all

        return check_all([self.name], laws=self.laws)[0]


class TriedLaw(pytest.Item):
    """The verdict of one law on one target."""

    parent: CheckedTarget

    def runtest(self) -> None:
        """Fail where the law is broken or cannot be run, and skip where it was not tried."""
        report = self.parent.report
        if not report.built:
            raise VerdictError(report.note)
        finding = report.law(self.name)
        if finding.verdict == "violated":
            from querykey.laws import explained

            raise VerdictError(explained(finding))
        if finding.verdict in ("error", "timeout"):
            raise VerdictError(finding.traceback or finding.note)
        if finding.verdict in ("not-applicable", "vacuous"):
            pytest.skip(finding.note)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the words of a verdict without the traceback of this plugin."""
        if isinstance(excinfo.value, VerdictError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """Return what a listing shows: the target, and the law."""
        return self.parent.name, None, f"{self.parent.name}: {self.name}"


class VerdictError(Exception):
    """The words of a verdict that fails a test."""
