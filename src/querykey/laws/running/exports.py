"""Reports in the formats that other programs read: JUnit XML, and SARIF 2.1.0."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from querykey.laws.catalogue.table import LAWS
from querykey.laws.finding import Finding
from querykey.laws.printed import explained
from querykey.laws.report import Report, installed
from querykey.laws.training.table import TRAINING_LAWS

Known = Collection[tuple[str, str]]  # (target, law) pairs that a baseline knows to be broken
FAILED = ("error", "timeout")
LEVELS = {"violated": "error", "advice": "warning", "limitation": "note", "tie": "note"}
SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_junit(reports: Iterable[Report], known: Known = ()) -> str:
    """Return reports as JUnit XML: a suite per target, a case per law.

    A breach is a failure, one that the baseline knows is skipped, and so is what was not tried.
    """
    root = ElementTree.Element("testsuites", name="qk check")
    for report in reports:
        cases = list(_cases(report, known))
        suite = ElementTree.SubElement(
            root, "testsuite", name=_clean(report.target), time=f"{report.seconds:.3f}"
        )
        suite.extend(cases)
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(name, str(sum(case.find(tag) is not None for case in cases)))
        suite.set("tests", str(len(cases)))
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, 0)) for suite in root)))
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _cases(report: Report, known: Known) -> Iterator[ElementTree.Element]:
    """Yield a test case per law; or the one that a target could not be built."""
    for finding in report.laws:
        case = _case(report, finding.law)
        if finding.verdict == "violated" and (report.target, finding.law) not in known:
            tag, text = "failure", explained(finding)
        elif finding.verdict in FAILED:
            tag, text = "error", finding.traceback or report.traceback or ""
        elif finding.verdict in ("violated", "not-applicable", "vacuous"):
            tag, text = "skipped", ""
        else:
            tag, text = "system-out", finding.note
        if tag != "system-out":
            ElementTree.SubElement(
                case, tag, type=finding.verdict, message=_clean(finding.note)
            ).text = _clean(text)
        elif text:
            ElementTree.SubElement(case, tag).text = _clean(f"{finding.verdict}: {text}")
        yield case
    if not report.built:
        case = _case(report, "build")
        error = ElementTree.SubElement(case, "error", type="build", message=_clean(report.note))
        error.text = _clean(report.traceback or "")
        yield case


def _case(report: Report, name: str) -> ElementTree.Element:
    return ElementTree.Element("testcase", classname=_clean(report.target), name=name)


def _clean(text: str) -> str:
    """Return text without what XML cannot hold: control characters and halves of a character."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(c if c >= " " or c in "\t\n\r" else repr(c)[1:-1] for c in text)


def as_sarif(reports: Iterable[Report], known: Known = ()) -> str:
    """Return the breaches and the advice of reports as SARIF 2.1.0, each at its file and line."""
    reports = list(reports)
    results = [
        _result(report, finding, (report.target, finding.law) in known)
        for report in reports
        for finding in report.laws
        if finding.verdict in LEVELS
    ]
    driver = {
        "name": "querykey",
        "rules": list(_rules(reports)),
        "version": installed(("querykey",)).get("querykey", "unknown"),
    }
    notifications = [_notification(note) for report in reports for note in _failures(report)]
    invocation = {
        "executionSuccessful": not notifications,
        "toolExecutionNotifications": notifications,
    }
    run = {"tool": {"driver": driver}, "invocations": [invocation], "results": results}
    log = {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=1) + "\n"


def _rules(reports: Iterable[Report]) -> Iterator[dict[str, Any]]:
    """Yield every law of the reports as a rule."""
    laws = {law.name: law for law in (*LAWS, *TRAINING_LAWS)}
    for name in dict.fromkeys(f.law for report in reports for f in report.laws):
        if law := laws.get(name):
            words = f"{law.why} {law.how}"
            texts = {"shortDescription": {"text": law.says}, "fullDescription": {"text": words}}
        else:
            texts = {}
        yield {"id": name, **texts}


def _result(report: Report, finding: Finding, known: bool) -> dict[str, Any]:
    blamed = f" First module to blame: {finding.module} ({finding.source})." * bool(finding.module)
    result = {
        "ruleId": finding.law,
        "level": LEVELS[finding.verdict],
        "message": {"text": f"{report.target}: {finding.note}.{blamed}"},
        "partialFingerprints": {"querykey": f"{report.target} {finding.law} {finding.module}"},
        "baselineState": "unchanged" if known else "new",
    }
    place = _place(finding.source)
    return {**result, "locations": [place]} if place else result


def _place(source: str | None) -> dict[str, Any] | None:
    """Return where `Layer, examples/leak.py:18` is, and None where no line is known."""
    file, _, line = (source or "").rpartition(", ")[2].rpartition(":")
    if not file or not line.isdecimal():
        return None
    artifact = {"uri": quote(file.encode("utf-8", "surrogateescape")), "uriBaseId": "%SRCROOT%"}
    return {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": int(line)}}}


def _failures(report: Report) -> Iterator[str]:
    """Yield what could not be run of a report, in sentences."""
    if report.note:
        yield f"{report.target}: {report.note}"
    for finding in report.laws:
        if finding.verdict in FAILED and finding.note != report.note:
            yield f"{report.target}, {finding.law}: {finding.note}"


def _notification(text: str) -> dict[str, Any]:
    return {"level": "error", "message": {"text": text}}
