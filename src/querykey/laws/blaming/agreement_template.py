"""The bodies of scripts that compare a model with another one that is meant to be the same."""

from __future__ import annotations

from querykey.laws.blaming.coding import COMPARE, answer_code, quoted
from querykey.laws.blaming.gradient_templates import Bodies
from querykey.laws.blaming.literals import CodeWriter
from querykey.laws.blaming.tracing import trace_run
from querykey.laws.catalogue.agreement import cases, inputs_of_other, paired
from querykey.laws.finding import Finding
from querykey.laws.run import Run
from querykey.laws.runner import Runner
from querykey.laws.trial import Outcome
from querykey.laws.understanding.understand import understand

WEIGHTS_OF = """NAMES = {names}


def weights_of(state):
    return {{name: state[its] for name, its in NAMES.items()}}


"""


def of_agreement(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield bodies that give both models the same weights and compare their answers."""
    if runner.subject.like is None:
        return
    other, mapping = runner.subject.like
    if runner.subject.forward is not runner.copies.model or other.forward is not other.model:
        return
    theirs, setting, weights = understand(other, runner.copies.recipe.seed), outcome.setting, ""
    if mapping is None:
        names = paired(runner.copies.model.state_dict(), other.model.state_dict()).names
        weights = WEIGHTS_OF.format(names=names)
    for run, keep, what in cases(runner, setting):
        inputs = inputs_of_other(runner, theirs, run.inputs)
        if inputs is None:
            continue
        writer, its = CodeWriter(), Run(inputs, run.setting)
        first, second = trace_run(runner, run), trace_run(theirs, its)
        keep = keep if first.answer.shape == second.answer.shape else None
        calls = [writer.calls(first.calls, "first", "    ")[0]]
        x = answer_code(runner, writer, first, run, keep)
        calls.append(writer.calls(second.calls, "second", "    ")[0])
        y = answer_code(theirs, writer, second, its, keep)
        words = f'WORDS = "the answers of two models with the same weights differ{quoted(what)}"'
        yield (
            f"{weights}{writer.definitions()}\n\n"
            "model, other = build(), build_other()\n"
            "other.load_state_dict(weights_of(model.state_dict()), strict=False)\n"
            f"with torch.no_grad():\n{calls[0]}\n    model = other\n{calls[1]}\n"
            f"x = {x}\ny = {y}\n\n{words}{COMPARE}"
        )
