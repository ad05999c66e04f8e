"""The bodies of scripts for laws of a model's own loss, and of derivatives written by hand."""

from __future__ import annotations

import torch

from querykey.laws.blaming.coding import answer_code
from querykey.laws.blaming.gradient_templates import Bodies
from querykey.laws.blaming.literals import CodeWriter
from querykey.laws.blaming.recorder import Recorder
from querykey.laws.blaming.tracing import TracedRun, parts_of, trace_run, tracing
from querykey.laws.catalogue import losses
from querykey.laws.catalogue.accumulation import counted_calls
from querykey.laws.finding import Finding
from querykey.laws.run import PLAIN, Inputs, Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Outcome
from querykey.laws.understanding.loss import distinct_labels, number_of, scores_of

HOOK = """captured = []
model.get_submodule({path!r}).register_forward_hook(
    lambda module, args, output: captured.append(output)
)
"""
MET = """gradient = gradient.reshape(*labels.shape, -1)
met = {{}}
for row in range(len(labels)):
    for place in range(labels.shape[1]):
        there = gradient[row, place]
        if float(there.abs().max()) <= 1e-9 * float(gradient.abs().max()):
            continue  # this answer is compared with nothing
        r, p = (labels == int(there.argmin())).nonzero()[0].tolist()
        shift = p - place if r == row else f"in row {{r}} instead of {{row}}"
        met[shift] = met.get(shift, 0) + 1
print(f"answers are compared with labels so many places on: {{met}}; right is {wanted}")
sys.exit(int(met.keys() not in ({{0}}, {{1}}) if {either} else met.keys() != {{{wanted}}}))
"""


def call_code(
    runner: Runner, writer: CodeWriter, inputs: Inputs, setting: Setting, name: str
) -> tuple[str, str, str, str]:
    """Return code: a hook where one is needed, a call with labels, its loss, and its scores."""
    run = Run(inputs, setting)
    with tracing(runner, run) as (trace, watched), torch.no_grad():
        watched.call(watched.complete(run), setting)
    traced = TracedRun(run, trace.calls, [], torch.empty(0))
    calls, _ = writer.calls(traced.calls, name)
    loss, scores, hook = _loss_code(traced, name), _scores_code(runner, traced, name), ""
    if not scores:
        path = _module_of_scores(runner, inputs, setting)
        hook, scores = HOOK.format(path=path), "captured[-1]"
    return hook, calls, loss, scores


def _loss_code(traced: TracedRun, name: str) -> str:
    loss = number_of(traced.calls[-1].result)
    place = None if loss is None else loss.data_ptr()
    for part, path in parts_of(traced.calls[-1].result):
        if isinstance(part, torch.Tensor) and part.numel() == 1 and part.data_ptr() == place:
            return f"{name}{path}.squeeze()"
    raise ValueError("the loss is no part of what the call returned")


def _scores_code(runner: Runner, traced: TracedRun, name: str) -> str:
    """Return the code of the scores among what a call returned, or nothing."""
    found = scores_of(runner, traced.calls[-1].result, Recorder(), traced.run.inputs)
    scores = next(found, None)
    for part, path in parts_of(traced.calls[-1].result):
        if part is scores and scores is not None:
            return f"{name}{path}"
    return ""


def _module_of_scores(runner: Runner, inputs: Inputs, setting: Setting) -> str:
    """Return the path of the module that makes the scores."""
    recorder = Recorder(live=True)
    runner.call(runner.complete(Run(inputs, setting)), setting, recorder)
    scores = next(scores_of(runner, None, recorder, inputs))
    return next(c.path for c in reversed(recorder.done) if any(t is scores for t in c.outputs))


def of_shift(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield the body that reads from a loss's derivative which labels answers are compared with."""
    inputs, name = runner.inputs(outcome.setting), losses.interface(runner).name
    labels = distinct_labels(runner, inputs)
    writer = CodeWriter()
    held = writer.tensor(labels, "labels")
    passed = {**inputs, name: labels}
    hook, calls, loss, scores = call_code(runner, writer, passed, outcome.setting, "output")
    following = runner.facts.causal and not runner.signature.others()
    either = following and bool(losses.SHIFTED_BY_CALLERS.match(name))
    yield (
        f"{writer.definitions()}\n\nlabels = {held}\nmodel = build()\n{hook}{calls}\n"
        f"gradient = torch.autograd.grad({loss}, {scores})[0]\n"
        + MET.format(wanted=int(following), either=either)
    )


def of_hidden_labels(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield bodies that hide labels: their derivative, the loss's size, and more padding."""
    setting, name = losses.SIZE, losses.interface(runner).name
    inputs, ignored = runner.inputs(setting), losses.interface(runner).ignored
    labels = distinct_labels(runner, inputs)
    pairs = losses.pairing(losses.asked_with(runner, inputs, labels, setting), labels)
    hidden = losses.with_hidden(labels, ignored or 0)
    writer = CodeWriter()
    hook, calls, loss, scores = call_code(
        runner, writer, {**inputs, name: hidden}, setting, "output"
    )
    silent = [a for a, (row, p) in pairs.labels.items() if int(hidden[row, p]) == ignored]
    yield (
        f"{writer.definitions()}\n\nmodel = build()\n{hook}{calls}\n"
        f"gradient = torch.autograd.grad({loss}, {scores})[0].reshape(*{tuple(labels.shape)}, -1)\n"
        f"silent = [gradient[place] for place in {silent}]\n"
        "share = float(torch.stack(silent).abs().max() / gradient.abs().max())\n"
        'print(f"the loss follows answers whose labels do not count: {share:.3g} of the largest")\n'
        "sys.exit(int(not share <= LIMIT))\n"
    )
    yield from _sizes(runner, finding, labels, hidden, pairs)
    yield from _more_padding(runner, inputs, hidden, setting)


FORMULAS = {
    "the mean over counted labels": "total / max(counted, 1)",
    "the sum over counted labels by rows": "total / len(labels)",
    "the sum over counted labels": "total",
    "the mean over labels before they are shifted": "total / max(held, 1)",
}


def _sizes(
    runner: Runner,
    finding: Finding,
    labels: torch.Tensor,
    hidden: torch.Tensor,
    pairs: losses.Pairing,
) -> Bodies:
    """Yield the body that computes the loss from the scores, as the model's own promises it."""
    promise = next((p for p in FORMULAS if f"and {p} is" in finding.note), None)
    if promise is None:
        return
    setting, name = losses.SIZE, losses.interface(runner).name
    inputs, writer, ignored = runner.inputs(setting), CodeWriter(), losses.interface(runner).ignored
    code = []
    for which, value in (("whole", labels), ("part", hidden)):
        held = writer.tensor(value, f"{which}_labels")
        passed = {**inputs, name: value}
        hook, calls, loss, scores = call_code(runner, writer, passed, setting, which)
        code.append(
            f"{hook}{calls}\n"
            f"{which}_loss, {which}_right = {loss}.item(), promised({scores}, {held})"
        )
    body = "\n".join(code)
    yield (
        f"{writer.definitions()}\n\nPAIRS = {pairs.labels}\n\n\n"
        "def promised(scores, labels):\n"
        f'    """Return {promise}."""\n'
        "    logs = scores.double().reshape(*labels.shape, -1).log_softmax(-1)\n"
        f"    held, kept = int((labels != {ignored}).sum()), [\n"
        "        (answer, label) for answer, label in PAIRS.items()\n"
        f"        if int(labels[label]) != {ignored}]\n"
        "    total = -sum(float(logs[(*answer, int(labels[label]))]) for answer, label in kept)\n"
        f"    counted = len(kept)\n    return {FORMULAS[promise]}\n\n\n"
        f"model = build()\n{body}\n"
        'print(f"with all labels the loss is {whole_loss:.4g}, as promised {whole_right:.4g}; '
        'with some that do not count {part_loss:.4g}, and promised is {part_right:.4g}")\n'
        "kept = abs(whole_loss - whole_right) <= 1e-4 * abs(whole_right)\n"
        "sys.exit(int(kept and not abs(part_loss - part_right) <= 1e-4 * abs(part_right)))\n"
    )


def _more_padding(runner: Runner, inputs: Inputs, hidden: torch.Tensor, setting: Setting) -> Bodies:
    """Yield the body that adds padding whose labels do not count."""
    name, writer, values = losses.interface(runner).name, CodeWriter(), []
    padded, wide, longer = losses.with_more_padding(runner, inputs, hidden)
    cases = (({**inputs, name: hidden}, setting), ({**padded, name: wide}, longer))
    for which, (passed, size) in zip(("short", "long"), cases, strict=True):
        _, calls, loss, _ = call_code(runner, writer, passed, size, which)
        values.append(f"{calls}\n{which}_loss = {loss}.item()")
    lines = "\n".join(values)
    yield (
        f"{writer.definitions()}\n\nmodel = build()\n{lines}\n"
        'print(f"the loss is {short_loss:.6g}, and {long_loss:.6g} with padding that does not '
        'count")\nsys.exit(int(not abs(short_loss - long_loss) <= LIMIT * abs(short_loss)))\n'
    )


def of_count(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield the body that tells a loss the number of labels of all its rows, and of each."""
    writer, lines = CodeWriter(), ["model = build()"]
    for name, inputs in zip(COUNTED, counted_calls(runner, outcome.setting), strict=True):
        run = Run(inputs, outcome.setting)
        with tracing(runner, run) as (trace, watched), torch.no_grad():
            watched.call(watched.complete(run), outcome.setting)
        calls, _ = writer.calls(trace.calls, f"output_{name}")
        loss = _loss_code(TracedRun(run, trace.calls, [], torch.empty(0)), f"output_{name}")
        lines.append(f"{calls}\n{name} = {loss}.item()")
    yield f"{writer.definitions()}\n\n" + "\n".join(lines) + SHARES


COUNTED = ("whole", "twice", "first", "second", "third")
SHARES = """
rows = first + second + third
print(f"with the number of all labels, the losses of 3 rows add up to {rows:.4g} and that of "
      f"their batch is {whole:.4g}; with twice the number, the batch's is {twice:.4g}")
sys.exit(int(max(abs(rows - whole), abs(2 * twice - whole)) > LIMIT * abs(whole)))
"""


def of_own_derivatives(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield the body that compares derivatives by parameters with differences of values."""
    writer, run = CodeWriter(), Run(runner.inputs(PLAIN), PLAIN)
    traced = trace_run(runner, run)
    calls, _ = writer.calls(traced.calls, "output", "    ")
    answer = answer_code(runner, writer, traced, run, None)
    yield (
        "DTYPE = torch.float64\ntorch.set_default_dtype(DTYPE)\n"
        f"{writer.definitions()}\n\n\n"
        "def total(model):\n"
        '    """Return a random sum of the answers."""\n'
        f"{calls}\n    answer = {answer}\n"
        "    weights = torch.randn(answer.shape, generator=torch.Generator().manual_seed(7))\n"
        "    return (answer * weights).sum()\n\n\n"
        "model = build()\ntotal(model).backward()\nworst, step = (0.0, None), 1e-6\n"
        "for name, parameter in model.named_parameters():\n"
        "    if parameter.grad is None:\n        continue\n"
        "    direction = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))\n"
        "    told = float((parameter.grad * direction).sum())\n"
        "    with torch.no_grad():\n"
        "        parameter.add_(direction, alpha=step)\n        above = float(total(model))\n"
        "        parameter.add_(direction, alpha=-2 * step)\n        below = float(total(model))\n"
        "        parameter.add_(direction, alpha=step)\n"
        "    measured = (above - below) / (2 * step)\n"
        "    far = abs(told - measured) / max(abs(measured), abs(told), 1e-3)\n"
        "    worst = max(worst, (far, name), key=lambda pair: pair[0])\n"
        'print(f"the gradient of {worst[1]} differs by {worst[0]:.3g} from that of the values")\n'
        "sys.exit(int(not worst[0] <= 1e-3))\n"
    )
