"""The bodies of scripts for laws of other paths: what is recomputed, loaded, renamed or cast."""

from __future__ import annotations

from querykey.laws.blaming.coding import answer_code, cells_code, switch_code
from querykey.laws.blaming.gradient_templates import Bodies
from querykey.laws.blaming.literals import CodeWriter
from querykey.laws.blaming.tracing import trace_run
from querykey.laws.catalogue import checkpointing, paths, vocabulary
from querykey.laws.finding import Finding
from querykey.laws.private import is_pretrained
from querykey.laws.run import PLAIN, Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Cells, Outcome

APART = '''
def apart(first, second):
    """Return the largest difference of two answers, or of two gradients of one parameter."""
    (x, before), (y, after) = first, second
    worst = float((x - y).abs().max()) / float(x.double().pow(2).mean().sqrt())
    what, sizes = "the answer", [float(g.pow(2).mean().sqrt()) for g in before.values()]
    for name in before.keys() | after.keys():
        known = before.get(name, after.get(name))
        g, h = (found.get(name, torch.zeros_like(known)) for found in (before, after))
        size = max(float(g.pow(2).mean().sqrt()), 1e-6 * max(sizes), 1e-30)
        if float((g - h).abs().max()) / size > worst:
            worst, what = float((g - h).abs().max()) / size, f"the gradient of {name}"
    return worst, what

'''
TOLD = """worst, what = apart(first, second)
print(f"{{what}} moves by {{worst:.3g}} of its size {when}, where rounding stays below {{LIMIT}}")
sys.exit(int(not worst <= LIMIT))
"""


def trained_code(runner: Runner, writer: CodeWriter, run: Run, keep: Cells | None) -> str:
    """Return the code of a function that gives a model's answer and its parameters' gradients."""
    traced = trace_run(runner, run)
    calls, _ = writer.calls(traced.calls, "output", "    ")
    answer = answer_code(runner, writer, traced, run, None)
    asked = "answer" if keep is None else cells_code("answer", keep, traced.answer)
    return (
        "def trained(model):\n"
        '    """Return the answer and the gradients of a random sum of it."""\n'
        "    model.zero_grad()\n"
        f"{calls}\n    answer = {answer}\n    asked = {asked}\n"
        "    generator = torch.Generator().manual_seed(7)\n"
        "    weights = torch.randn(asked.shape, generator=generator, dtype=torch.float64)\n"
        "    (asked * weights.to(asked.dtype)).sum().backward()\n"
        "    named = model.named_parameters()\n"
        "    return asked.detach(), {n: p.grad.clone() for n, p in named if p.grad is not None}\n"
    )


def of_checkpoint(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield the body that trains once as it is, and once with activation checkpointing."""
    setting = Setting(train=True)
    inputs, keep = paths.some_padded(runner, setting)
    writer = CodeWriter()
    trained = trained_code(runner, writer, Run(inputs, setting), keep)
    model = runner.copies.model
    method = next((n for n in checkpointing.SWITCHES if callable(getattr(model, n, None))), None)
    if method:
        kwargs = 'gradient_checkpointing_kwargs={"use_reentrant": False}'
        turn_on = f"model.{method}({kwargs if is_pretrained(model) else ''})"
    else:
        held = [(holder, name) for holder in checkpointing.holders(model) for name in vars(holder)]
        flags = {
            n for h, n in held if isinstance(vars(h)[n], bool) and checkpointing.FLAGS.match(n)
        }
        names = sorted(flags)
        turn_on = (
            "for module in model.modules():\n"
            '    for holder in [module, *(getattr(module, n, None) for n in ("config", "cfg", '
            '"args"))]:\n'
            f"        for name in {names}:\n"
            '            if isinstance(getattr(holder, "__dict__", {}).get(name), bool):\n'
            "                object.__setattr__(holder, name, True)"
        )
    yield (
        f"{APART.strip()}\n\n\n{writer.definitions()}\n\n\n{trained}\n\n"
        f"first = trained(build())\nmodel = build()\n{turn_on}\nsecond = trained(model)\n"
        + TOLD.format(when="when activations are checkpointed")
    )


def of_kernels(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield bodies that train with one implementation of attention and with another."""
    names = runner.facts.arguments.implementations
    inputs, keep = paths.some_padded(runner, PLAIN)
    for name in names[1:]:
        writer = CodeWriter()
        trained = trained_code(runner, writer, Run(inputs, PLAIN), keep)
        switches = [switch_code(runner, way) for way in (names[0], name)]
        if None in switches:
            continue
        yield (
            f"{APART.strip()}\n\n\n{writer.definitions()}\n\n\n{trained}\n\n"
            f"model = build()\n{switches[0]}\nfirst = trained(model)\n"
            f"model = build()\n{switches[1]}\nsecond = trained(model)\n"
            + TOLD.format(when=f"when attention is computed by {name} and not by {names[0]}")
        )


def of_compiling(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield the body that trains a model as it is, and compiled."""
    writer = CodeWriter()
    trained = trained_code(runner, writer, Run(runner.inputs(PLAIN), PLAIN), None)
    trained = trained.replace("def trained(model):", "def trained(model, call):")
    yield (
        f"{APART.strip()}\n\n\n{writer.definitions()}\n\n\n"
        f"{trained.replace('= model(', '= call(')}\n\n"
        "model = build()\nfirst = trained(model, model)\n"
        "second = trained(model, torch.compile(model))\n"
        + TOLD.format(when="when the model is compiled")
    )


def of_exporting(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield the body that exports a model on one input, and calls the graph on another."""
    writer = CodeWriter()
    kept, other = (Run(runner.inputs(PLAIN, seed), PLAIN) for seed in (0, 1))
    example = ", ".join(
        f"{name!r}: {writer.value(value, name)}" for name, value in kept.inputs.items()
    )
    traced = trace_run(runner, other)
    calls, _ = writer.calls(traced.calls, "output", "    ")
    answer = answer_code(runner, writer, traced, other, None)
    yield (
        f"{writer.definitions()}\n\n\ndef answer(model):\n    with torch.no_grad():\n    {calls}\n"
        f"    return {answer}\n\n\nmodel = build()\n"
        f"graph = torch.export.export(model, (), {{{example}}}).module()\n"
        "x, y = answer(model), answer(graph)\n"
        "difference = float((x - y).abs().max()) / float(x.pow(2).mean().sqrt())\n"
        'print(f"the exported graph answers other inputs {difference:.3g} of their size away")\n'
        "sys.exit(int(not difference <= LIMIT))\n"
    )


def of_reload(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield bodies that load a model's state into another that is made anew, trained or not."""
    if runner.subject.forward is not runner.copies.model:
        return
    for trains in (False, True):
        writer, run = CodeWriter(), Run(runner.inputs(PLAIN), PLAIN)
        traced = trace_run(runner, run)
        calls, _ = writer.calls(traced.calls, "output", "        ")
        answer = answer_code(runner, writer, traced, run, None)
        train = "first.train()\nanswer(first), answer(first)\nfirst.eval()\n" * trains
        yield (
            f"{writer.definitions()}\n\n\ndef answer(model):\n    with torch.no_grad():\n{calls}\n"
            f"        return {answer}\n\n\nfirst = build()\n{train}"
            "torch.set_default_dtype(torch.float32)\nrandom.seed(101)\nnumpy.random.seed(101)\n"
            "torch.manual_seed(101)\nsecond = make().eval()\n"
            "torch.set_default_dtype(DTYPE)\nsecond = second.to(DTYPE)\n"
            "second.load_state_dict(first.state_dict())\nx, y = answer(first), answer(second)\n"
            "difference = float((x - y).abs().max()) / float(x.pow(2).mean().sqrt())\n"
            'print(f"a new model with this state answers {difference:.3g} of their size away")\n'
            "sys.exit(int(not difference <= LIMIT))\n"
        )


def of_vocabulary(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield the body that renames ids in the input, the tables and the scores."""
    setting = outcome.setting
    tables, swaps = vocabulary.renaming(runner, setting)
    names = {id(p): n for n, p in runner.copies.of(setting).named_parameters()}
    lines = [(names[id(tensor)], axis) for tensor, axis in tables.lines if id(tensor) in names]
    order = vocabulary.order_of(tables.words, swaps)
    inputs, writer, runs = runner.inputs(setting), CodeWriter(), []
    for place, value in enumerate((inputs, vocabulary.renamed(runner, inputs, order))):
        run = Run(value, setting)
        traced = trace_run(runner, run)
        calls, _ = writer.calls(traced.calls, ("first", "second")[place], "    ")
        runs.append((calls, answer_code(runner, writer, traced, run, None)))
    sizes = sorted({tables.words, tables.scored} - {0})
    yield (
        f"{writer.definitions()}\n\nSWAPS = {swaps}\n\n\n"
        "def names(size):\n"
        '    """Return the new name of every id."""\n'
        "    order = torch.arange(size)\n"
        "    for first, second in SWAPS:\n"
        "        order[first], order[second] = second, first\n"
        "    return order\n\n\n"
        f"model = build()\nwith torch.no_grad():\n{runs[0][0]}\nx = {runs[0][1]}\n"
        "with torch.no_grad():\n"
        f"    for name, axis in {lines}:\n"
        "        table = model.get_parameter(name)\n"
        "        new = names(table.shape[axis]).argsort()\n"
        "        table.copy_(table.index_select(axis, new))\n"
        f"{runs[1][0]}\ny = {runs[1][1]}\n"
        f"y = y[..., names(y.shape[-1])] if y.shape[-1] in {sizes} else y\n"
        "difference = float((x - y).abs().max()) / float(x.pow(2).mean().sqrt())\n"
        'print(f"answers differ by {difference:.3g} of their size when ids change their names")\n'
        "sys.exit(int(not difference <= LIMIT))\n"
    )


def of_autocast(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield the body that compares autocast with float64, and with rounding every output."""
    if runner.subject.forward is not runner.copies.model:
        return
    writer = CodeWriter()
    trained = trained_code(runner, writer, Run(runner.inputs(PLAIN), PLAIN), None)
    yield (
        f"{writer.definitions()}\n\n\ndef rounded(module, args, output):\n"
        "    if isinstance(output, torch.Tensor) and output.is_floating_point():\n"
        "        return output.to(torch.bfloat16).to(output.dtype)\n\n\n"
        f"{trained}\n\n"
        "def error(found, exact):\n"
        '    """Return the error of an answer, and that of all gradients together."""\n'
        "    if found[1].keys() != exact[1].keys():\n"
        '        print(f"only one has gradients of {sorted(found[1].keys() ^ exact[1].keys())}")\n'
        "        return [math.inf, math.inf]\n"
        "    pairs = [[(found[0], exact[0])], [(found[1][n], g) for n, g in exact[1].items()]]\n"
        "    return [float((sum((x.double() - y).pow(2).sum() for x, y in part)\n"
        "                   / sum(y.pow(2).sum() for _, y in part)).sqrt()) for part in pairs]\n"
        "\n\n"
        "model = build().float()\ntorch.set_default_dtype(torch.float32)\n"
        "with torch.autocast(next(model.parameters()).device.type, torch.bfloat16):\n"
        "    low = trained(model)\n"
        "torch.set_default_dtype(torch.float64)\n"
        "torch.Tensor.half = torch.Tensor.float = torch.Tensor.bfloat16 = torch.Tensor.double\n"
        "model = model.double()\nexact = trained(model)\n"
        "for module in model.modules():\n    module.register_forward_hook(rounded)\n"
        "near = trained(model)\nbad = False\n"
        'names = ("answers", "gradients")\n'
        "for what, far, usual in zip(names, error(low, exact), error(near, exact)):\n"
        '    print(f"under autocast {what} err by {far:.2e}; 16 times {usual:.2e} and 0.05 are '
        'allowed")\n'
        "    bad |= not far <= 16 * usual + 0.05\nsys.exit(int(bad))\n"
    )
