"""JUnit XML and SARIF: read back by other means, and held against what their formats demand."""

import json
from xml.etree import ElementTree

import pytest
from jsonschema import Draft202012Validator, ValidationError

from querykey import cli
from querykey.laws import Finding, Report
from querykey.laws.running.exports import as_junit, as_sarif

SOURCE = "Layer, my models/leak.py:18"
REPORTS = [
    Report(
        "leak.py:make",
        "decoder",
        [
            Finding("purity", "holds", 0.0, 0.0),
            Finding("causality.perturb", "violated", 1.4, 1e-15, module="2", source=SOURCE,
                    note="it moved & <grew>"),
            Finding("causality.prefix", "violated", 1.1, 1e-15, note="it moved"),
            Finding("padding.right", "not-applicable", note="it takes no padding mask"),
            Finding("tying", "vacuous", note="no effect"),
            Finding("masked-row", "error", note="RuntimeError: \x00 no", traceback="Traceback"),
            Finding("saturation", "advice", 1.0, 0.0, note="sharp"),
            Finding("mine.own", "limitation", 1.0, 0.0, note="published so"),
        ],
        seconds=1.25,
    ),
    Report("\udcff.py:make", "unknown", [], built=False, note="no such thing"),
]  # fmt: skip
KNOWN = {("leak.py:make", "causality.prefix")}

# What SARIF 2.1.0 demands of the parts that are used here, written down from the standard.
TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
LEVEL = {"enum": ["none", "note", "warning", "error"]}
PLACE = {
    "type": "object",
    "required": ["physicalLocation"],
    "properties": {
        "physicalLocation": {
            "type": "object",
            "required": ["artifactLocation", "region"],
            "properties": {
                "artifactLocation": {
                    "type": "object",
                    "required": ["uri"],
                    "properties": {"uri": {"type": "string", "pattern": r"^[^\s\\]+$"}},
                },
                "region": {
                    "type": "object",
                    "properties": {"startLine": {"type": "integer", "minimum": 1}},
                },
            },
        }
    },
}
RESULT = {
    "type": "object",
    "required": ["message", "ruleId"],
    "properties": {
        "ruleId": {"type": "string"},
        "level": LEVEL,
        "message": TEXT,
        "locations": {"type": "array", "items": PLACE},
        "partialFingerprints": {"type": "object", "additionalProperties": {"type": "string"}},
        "baselineState": {"enum": ["new", "unchanged", "updated", "absent"]},
    },
    "additionalProperties": False,
}
RULE = {
    "type": "object",
    "required": ["id"],
    "properties": {"id": {"type": "string"}, "shortDescription": TEXT, "fullDescription": TEXT},
    "additionalProperties": False,
}
INVOCATION = {
    "type": "object",
    "required": ["executionSuccessful"],
    "properties": {
        "executionSuccessful": {"type": "boolean"},
        "toolExecutionNotifications": {
            "type": "array",
            "items": {"type": "object", "required": ["message"], "properties": {"level": LEVEL}},
        },
    },
}
SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["tool"],
                "properties": {
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "type": "object",
                                "required": ["name"],
                                "properties": {"rules": {"type": "array", "items": RULE}},
                            }
                        },
                    },
                    "results": {"type": "array", "items": RESULT},
                    "invocations": {"type": "array", "items": INVOCATION},
                },
                "additionalProperties": False,
            },
        },
    },
    "additionalProperties": False,
}


def test_sarif_is_what_the_standard_demands():
    log = json.loads(as_sarif(REPORTS, KNOWN))
    Draft202012Validator(SARIF).validate(log)
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(set(rules)) == len(rules)
    assert {result["ruleId"] for result in run["results"]} <= set(rules)
    assert [(r["ruleId"], r["level"], r["baselineState"]) for r in run["results"]] == [
        ("causality.perturb", "error", "new"),
        ("causality.prefix", "error", "unchanged"),
        ("saturation", "warning", "new"),
        ("mine.own", "note", "new"),
    ]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "my%20models/leak.py"
    assert place["region"] == {"startLine": 18}
    assert "locations" not in run["results"][1]
    (invocation,) = run["invocations"]
    notes = [n["message"]["text"] for n in invocation["toolExecutionNotifications"]]
    assert not invocation["executionSuccessful"]
    assert notes == [
        "leak.py:make, masked-row: RuntimeError: \x00 no",
        "\udcff.py:make: no such thing",
    ]


def test_the_check_of_sarif_can_fail():
    log = json.loads(as_sarif(REPORTS))
    log["runs"][0]["results"][0]["level"] = "fatal"
    with pytest.raises(ValidationError):
        Draft202012Validator(SARIF).validate(log)


def test_junit_counts_what_it_lists():
    root = ElementTree.fromstring(as_junit(REPORTS, KNOWN).encode())
    assert (root.tag, [suite.tag for suite in root]) == ("testsuites", ["testsuite"] * 2)
    for holder in (root, *root):
        cases = list(holder.iter("testcase"))
        assert int(holder.get("tests", 0)) == len(cases)
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(holder.get(name, 0)) == len(list(holder.iter(tag)))
    verdicts = {c.get("name"): [child.tag for child in c] for c in root.iter("testcase")}
    assert verdicts == {
        "purity": [],
        "causality.perturb": ["failure"],
        "causality.prefix": ["skipped"],
        "padding.right": ["skipped"],
        "tying": ["skipped"],
        "masked-row": ["error"],
        "saturation": ["system-out"],
        "mine.own": ["system-out"],
        "build": ["error"],
    }
    failure = next(root.iter("failure"))
    assert failure.get("message") == "it moved & <grew>"
    assert "first module to blame: 2 (Layer" in (failure.text or "")


def test_both_are_written_beside_the_report(tmp_path, capsys):
    words = ["check", "decoder", "--law", "purity"]
    files = {name: tmp_path / f"found.{name}" for name in ("junit", "sarif")}
    assert cli.run([*words, *(f"--{n}={f}" for n, f in files.items())]) == 0
    assert "1 of 1 law tried, none broken" in capsys.readouterr().out
    assert ElementTree.parse(files["junit"]).getroot().get("tests") == "1"
    assert json.loads(files["sarif"].read_text())["runs"][0]["results"] == []
    assert cli.run([*words, "--junit", str(tmp_path)]) == 2
    assert "it is a folder" in capsys.readouterr().err
