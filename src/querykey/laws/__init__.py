"""What a torch model must obey, and which module is to blame when it does not.

    report = check(model)            # an nn.Module, a Subject, or a target's name
    print(report); report.violations
    assert_lawful(model)             # in a test suite
    check_training(run)              # the laws of a training loop, while run() trains

A law of your own is a Law whose `trials` yield a Trial (two runs, and the cells of their answers
that must agree) or an Outcome that you measured yourself:

    check(model, laws=["causality", my_law])
"""

from querykey.laws.catalogue.sweeps import everything, once
from querykey.laws.catalogue.table import LAWS
from querykey.laws.check import assert_lawful, check, laws_named
from querykey.laws.finding import Finding
from querykey.laws.law import Law, RefusalError, every_model, plain_settings
from querykey.laws.printed import explained
from querykey.laws.report import Report
from querykey.laws.run import Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.running.command import BadCallError, Outputs, asked, run_command
from querykey.laws.running.demonstration import LEAK, leaky_model
from querykey.laws.running.listing import described, markdown_table, terminal_table
from querykey.laws.running.training import run_training_command
from querykey.laws.running.workers import Limits, check_all, stream
from querykey.laws.subject import Subject
from querykey.laws.training.check_training import check_training
from querykey.laws.training.law import TrainingLaw
from querykey.laws.training.table import TRAINING_LAWS
from querykey.laws.trial import Cells, Evidence, Outcome, Trial, cells, deviation, every_cell, rows
from querykey.laws.understanding.facts import ModelFacts
from querykey.laws.understanding.float64 import duplicate, lifted, randomised

__all__ = [
    "LAWS",
    "LEAK",
    "TRAINING_LAWS",
    "BadCallError",
    "Cells",
    "Evidence",
    "Finding",
    "Law",
    "Limits",
    "ModelFacts",
    "Outcome",
    "Outputs",
    "RefusalError",
    "Report",
    "Run",
    "Runner",
    "Setting",
    "Subject",
    "TrainingLaw",
    "Trial",
    "asked",
    "assert_lawful",
    "cells",
    "check",
    "check_all",
    "check_training",
    "described",
    "deviation",
    "duplicate",
    "every_cell",
    "every_model",
    "everything",
    "explained",
    "laws_named",
    "leaky_model",
    "lifted",
    "markdown_table",
    "once",
    "plain_settings",
    "randomised",
    "rows",
    "run_command",
    "run_training_command",
    "stream",
    "terminal_table",
]
