"""The bodies of scripts for laws of gradients: what reaches tokens, parameters, and rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import torch
from torch import nn

from querykey.laws.blaming.coding import answer_code, cells_code
from querykey.laws.blaming.literals import CodeWriter
from querykey.laws.blaming.tracing import trace_run
from querykey.laws.finding import Finding
from querykey.laws.run import PLAIN, Run
from querykey.laws.runner import Runner
from querykey.laws.trial import Outcome

Bodies = Iterator[str]


def of_derivative(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield the body that differentiates answers by what embeddings make of other tokens."""
    trial = outcome.evidence.trial
    if trial is None or trial.move is None or runner.subject.forward is not runner.copies.model:
        return
    run, writer = trial.first, CodeWriter()
    main = runner.signature.main
    traced = trace_run(runner, run)
    calls, _ = writer.calls(traced.calls, "first")
    answer = answer_code(runner, writer, traced, run, trial.keep[0])
    turned = "" if main.axes[0] == "batch" else ".movedim(0, 1)"
    if main.kind == "tokens":
        paths = list(dict.fromkeys(_embeddings(runner, run)))
        if not paths:
            return
        code = (
            "leaves = []\n\n\n"
            "def keep(module, args, output):\n"
            "    leaves.append(output.detach().requires_grad_())\n"
            "    return leaves[-1].clone()\n\n\n"
            "model = build()\n"
            f"for path in {paths!r}:\n"
            "    model.get_submodule(path).register_forward_hook(keep)\n"
        )
    else:
        name = writer.tensor(run.inputs[main.name], main.name)
        code = f"model = build()\nleaves = [{name}.requires_grad_()]\n"
    batch, length = runner.signature.batch_of(run.inputs), runner.signature.length_of(run.inputs)
    shape = torch.empty(batch, length)
    wrong = cells_code(f"leaf.grad{turned}", trial.move[0], shape)
    right = cells_code(f"leaf.grad{turned}", trial.keep[0], shape)
    code += f"{calls}\nasked = {answer}\n"
    code += (
        "weights = torch.randn(asked.shape, generator=torch.Generator().manual_seed(7), "
        "dtype=torch.float64)\n(asked * weights.to(DTYPE)).sum().backward()\n"
        "leaves = [leaf for leaf in leaves if leaf.grad is not None]\n"
        f"wrong = [{wrong} for leaf in leaves]\nright = [{right} for leaf in leaves]\n"
        "size = max(float(part.pow(2).mean().sqrt()) for part in right) or 1.0\n"
        "difference = max(float(part.abs().max()) for part in wrong) / size\n"
        'print(f"answers have a derivative with respect to tokens that they must not depend on: "\n'
        '      f"{difference:.3g}, where rounding stays below {LIMIT}")\n'
        "sys.exit(int(not difference <= LIMIT))\n"
    )
    yield f"{writer.definitions()}\n\n{code}"


def _embeddings(runner: Runner, run: Run) -> Iterator[str]:
    """Yield the paths of the embeddings that are called with the ids of the main input."""
    model, ids = runner.copies.of(run.setting), run.inputs[runner.signature.main.name]
    names: list[str] = []

    def hook(path: str) -> Callable[..., None]:
        def note(module: nn.Module, args: tuple, output: torch.Tensor) -> None:
            if args and args[0].shape == ids.shape and torch.equal(args[0].cpu(), ids):
                names.append(path)

        return note

    handles = [
        module.register_forward_hook(hook(path))
        for path, module in model.named_modules()
        if isinstance(module, nn.Embedding)
    ]
    try:
        with torch.no_grad():
            runner.answer(run)
    finally:
        for handle in handles:
            handle.remove()
    yield from names


SUMMED = '''
def summed(output):
    """Return one number of all that a model returned, with random weights."""
    if isinstance(output, torch.Tensor):
        if not output.is_floating_point():
            return 0
        generator = torch.Generator().manual_seed(7)
        weights = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        return (output * weights).sum()
    if hasattr(output, "__dict__") and not hasattr(output, "values"):
        output = vars(output)
    parts = output.values() if hasattr(output, "values") else output
    parts = parts if isinstance(parts, (list, tuple)) or hasattr(output, "values") else ()
    return sum(summed(part) for part in parts if part is not None)

'''
DEAD = """parameter = model.get_parameter({name!r})
gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
dead = {zero}
print(f"{{int(dead.sum())}} of {{len(dead)}} {what} of {name} get no gradient")
sys.exit(int(int(dead.sum()) >= {least}))
"""
NOTHING = """print("an output can be differentiated:", getattr(total, "requires_grad", False))
sys.exit(int(not getattr(total, "requires_grad", False)))
"""
MISSED = """hidden = model{path}
known = {{id(parameter) for parameter in model.parameters()}}
parts = list(hidden.parameters()) if isinstance(hidden, nn.Module) else [hidden]
missed = [part for part in parts if part.grad is not None and id(part) not in known]
print(f"{{len(missed)}} tensors of model{path} get a gradient that no optimizer hears of")
sys.exit(int(bool(missed)))
"""


def of_reaches(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield the body that looks for parameters, or their rows, without a gradient."""
    if " are not finite" in finding.note:
        yield from of_not_finite(runner)
        return
    end = _unreached(runner, finding.note)
    if not end or runner.subject.forward is not runner.copies.model:
        return
    writer = CodeWriter()
    code = ["model = build()", "total = 0"]
    for place, seed in enumerate((0, 1)):
        run = Run(runner.inputs(outcome.setting, seed), outcome.setting)
        traced = trace_run(runner, run)
        code.append(writer.calls(traced.calls, f"output_{place}")[0])
        code.append(f"total = total + summed(output_{place})")
    code.append('if getattr(total, "requires_grad", False):\n    total.backward()')
    lines = "\n".join(code)
    yield f"{SUMMED.strip()}\n\n\n{writer.definitions()}\n\n{lines}\n{end}"


def of_not_finite(runner: Runner) -> Bodies:
    """Yield the body that looks for weights and answers that are not finite."""
    writer, run = CodeWriter(), Run(runner.inputs(PLAIN), PLAIN)
    traced = trace_run(runner, run)
    calls, _ = writer.calls(traced.calls, "output", "    ")
    answer = answer_code(runner, writer, traced, run, None)
    yield (
        f"{writer.definitions()}\n\nmodel = build()\nwith torch.no_grad():\n{calls}\n"
        f"answer = {answer}\n"
        "held = [*model.named_parameters(), *model.named_buffers()]\n"
        "bad = [n for n, t in held if t.is_floating_point() and not t.isfinite().all()]\n"
        'print(f"not finite are {bad}, and {int((~answer.isfinite()).sum())} numbers of the '
        'answer")\nsys.exit(int(bool(bad) and not answer.isfinite().all()))\n'
    )


def _unreached(runner: Runner, note: str) -> str:
    """Return the code that looks for what the note of a finding names."""
    if "no output can be differentiated" in note:
        return NOTHING
    hidden = re.match(r"`([\w.\[\]'\"]+)`, a", note)
    if hidden:
        path = hidden[1]
        return MISSED.format(path=path if path.startswith("[") else f".{path}")
    names = {name for name, _ in runner.copies.model.named_parameters()}
    words = (word.strip(".") for word in re.findall(r"[\w.]+", note))
    name = next((word for word in words if word in names), None)
    if name is None:
        return ""
    part = re.search(r"of the \d+ (rows|columns) of", note)
    axes = {"rows": "(gradient == 0).all(1)", "columns": "(gradient == 0).all(0)"}
    zero = axes[part[1]] if part else "(gradient == 0).all().reshape(1)"
    what = part[1] if part else "parameters"
    return DEAD.format(name=name, zero=zero, what=what, least=2 if part else 1)


def of_accumulation(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield the body that compares the gradient of a batch with the sum over its rows."""
    setting, writer = outcome.setting, CodeWriter()
    inputs = runner.inputs(setting)
    runs = [Run(inputs, setting)]
    runs += [
        Run(runner.signature.take_rows(inputs, [row]), setting) for row in range(setting.batch)
    ]
    code = ["model = build()"]
    for place, run in enumerate(runs):
        traced = trace_run(runner, run)
        code.append(writer.calls(traced.calls, f"output_{place}")[0])
        answer = answer_code(runner, writer, traced, run, None)
        if place == 0:
            code.append(f"answer = {answer}")
            code.append("generator = torch.Generator().manual_seed(7)")
            code.append("weights = torch.randn(answer.shape, generator=generator, dtype=DTYPE)")
            code.append("(answer * weights).sum().backward()")
            code.append("whole = {n: p.grad for n, p in model.named_parameters()}")
            code.append("model.zero_grad(set_to_none=True)")
        else:
            code.append(f"({answer}[0] * weights[{place - 1}]).sum().backward()")
    code.append("rows = {n: p.grad for n, p in model.named_parameters()}")
    code.append("names = [n for n in whole if whole[n] is not None and rows[n] is not None]")
    code.append("largest = max(float(whole[n].pow(2).mean().sqrt()) for n in names)")
    code.append(
        "differences = {n: float((whole[n] - rows[n]).abs().max())\n"
        "    / max(float(whole[n].pow(2).mean().sqrt()), 1e-3 * largest) for n in names}"
    )
    code.append("name = max(differences, key=differences.get)")
    code.append(
        'print(f"the gradient of {name} for the batch is not the sum over its rows: it differs "\n'
        '      f"by {differences[name]:.3g}, where rounding stays below {LIMIT}")'
    )
    code.append("sys.exit(int(not differences[name] <= LIMIT))\n")
    yield f"{writer.definitions()}\n\n" + "\n".join(code)
