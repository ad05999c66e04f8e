"""What a torch model must obey, and who is to blame when it does not.

    report = check(model)            # an nn.Module, a Subject, or a target's name
    print(report); report.violations
    assert_lawful(model)             # in a test suite

The laws are in table.py; each is a value with the change it makes and what that must not touch.
"""

from querykey.laws.catalogue.table import LAWS
from querykey.laws.check import assert_lawful, check
from querykey.laws.law import Finding, Law
from querykey.laws.report import Report, explained
from querykey.laws.running.command import BadCallError, run_command
from querykey.laws.running.workers import Limits, check_all
from querykey.laws.subject import Subject
from querykey.laws.understanding.float64 import duplicate, lifted, randomised

__all__ = [
    "LAWS",
    "BadCallError",
    "Finding",
    "Law",
    "Limits",
    "Report",
    "Subject",
    "assert_lawful",
    "check",
    "check_all",
    "duplicate",
    "explained",
    "lifted",
    "randomised",
    "run_command",
]
