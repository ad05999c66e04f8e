"""The bodies of scripts: for every kind of law, the calls and the comparison, as plain torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from querykey.laws.blaming.literals import CodeWriter, UnwritableError
from querykey.laws.blaming.tracing import TracedRun, parts_of, trace_run, tracing
from querykey.laws.catalogue import padding
from querykey.laws.finding import Finding
from querykey.laws.run import Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Cells, Outcome
from querykey.laws.understanding.outputs import answers, follow

Bodies = Iterator[str]
COMPARE = """
same = (x == y) | (x.isnan() & y.isnan()) if x.shape == y.shape else None
size = float(x[x.isfinite()].double().pow(2).mean().sqrt()) or 1.0
difference = math.inf if same is None else float(torch.where(same, 0.0, (x - y).abs()).max()) / size
print(f"{WORDS}: {difference:.3g} of their size, where rounding stays below {LIMIT}")
sys.exit(int(not difference <= LIMIT))
"""


def of_trial(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield the body that compares the two runs of a trial."""
    trial = outcome.evidence.trial
    if trial is None:
        return
    writer = CodeWriter()
    first, second = (trace_run(runner, run) for run in (trial.first, trial.second))
    again = trial.second.setting.conditions.again
    code = _run(runner, writer, first, "first", fresh=True)
    code += _run(runner, writer, second, "second", fresh=not again)
    x = _answer(runner, writer, first, trial.first, trial.keep[0])
    y = _answer(runner, writer, second, trial.second, trial.keep[1])
    words = f'WORDS = "the answers that must be equal differ, when {_quoted(trial.what)}"'
    yield f"{writer.definitions()}\n\n{code}\nx = {x}\ny = {y}\n\n{words}{COMPARE}"


def _run(runner: Runner, writer: CodeWriter, traced: TracedRun, name: str, fresh: bool) -> str:
    """Return the code of one run: a model, its mode, and its calls."""
    setting = traced.run.setting
    lines = ["model = build()"] if fresh else ["torch.manual_seed(1)  # other random numbers"]
    wanted = setting.attention
    own = any(wanted in getattr(m, "backends", ()) for m in runner.copies.model.modules())
    if wanted and own:
        lines.append("for module in model.modules():")
        lines.append(f'    if {wanted!r} in getattr(module, "backends", ()):')
        lines.append(f"        module.backend = {wanted!r}")
    math = wanted == "math" and not own
    if math:
        lines.append("torch.backends.mha.set_fastpath_enabled(False)")
        kernel = "torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)"
        lines.append(f"with torch.no_grad(), {kernel}:")
    else:
        lines.append("with torch.no_grad():")
    lines.append(writer.calls(traced.calls, name, "    ")[0])
    if math:
        lines.append("torch.backends.mha.set_fastpath_enabled(True)")
        lines.insert(0, "import torch.nn.attention")
    return "\n".join(lines) + "\n"


def _answer(
    runner: Runner, writer: CodeWriter, traced: TracedRun, run: Run, keep: Cells | None
) -> str:
    """Return the code of the answer of a run: where it is in the outputs, and its cells."""
    parts = [_place(runner, writer, output, run) for output in traced.taken]
    if run.chunks is None:
        parts = parts[-1:]
    code = parts[0] if len(parts) == 1 else f"torch.cat([{', '.join(parts)}], 1)"
    return code if keep is None else _cells(code, keep, traced.answer)


def _place(runner: Runner, writer: CodeWriter, output: Any, run: Run) -> str:
    """Return the code of the answer in one output, as (batch, positions, ...)."""
    slot = run.slot or runner.signature.slot
    tensor = follow(output, slot.path)
    if not isinstance(tensor, torch.Tensor):
        tensor = next(part for _, part in answers(tensor))
    code = _found(writer, tensor)
    if slot.flat:
        return f"{code}.unflatten(0, ({runner.signature.batch_of(run.inputs)}, -1))"
    axes = [axis for axis in (slot.batch, slot.seq) if axis is not None]
    if axes != list(range(len(axes))):
        code += f".movedim({tuple(axes)}, {tuple(range(len(axes)))})"
    return code if slot.batch is not None else f"{code}.unsqueeze(0)"


def _found(writer: CodeWriter, tensor: torch.Tensor) -> str:
    """Return the code by which a result of a call is read."""
    for holder, held in reversed(writer.objects):
        for part, path in parts_of(held):
            if part is tensor:
                return f"{holder}{path}"
    raise UnwritableError("the answer is no part of what a call returned")


def _cells(code: str, keep: Cells, answer: torch.Tensor) -> str:
    """Return the code that takes these cells of an answer."""
    if keep.columns is None:
        rows = list(keep.rows)
        return code if rows == list(range(len(answer))) else f"{code}[{rows}]"
    batch, length = answer.shape[:2]
    if len(keep) == batch * length and _in_order(keep, length):
        return f"{code}.flatten(0, 1)"
    pieces: list[tuple[int, list[int]]] = []
    for row, column in zip(keep.rows, keep.columns, strict=True):
        if not pieces or pieces[-1][0] != row:
            pieces.append((row, []))
        pieces[-1][1].append(column)
    picked = [f"answer[{row}, {_range(columns)}]" for row, columns in pieces]
    joined = picked[0] if len(picked) == 1 else f"torch.cat([{', '.join(picked)}])"
    return f"(lambda answer: {joined})({code})"


def _in_order(keep: Cells, length: int) -> bool:
    cells = list(zip(keep.rows, keep.columns or (), strict=True))
    return cells == [divmod(place, length) for place in range(len(cells))]


def _range(columns: Sequence[int]) -> str:
    whole = list(columns) == list(range(columns[0], columns[-1] + 1))
    return f"{columns[0]}:{columns[-1] + 1}" if whole else str(list(columns))


def of_derivative(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield the body that differentiates answers by what embeddings make of other tokens."""
    trial = outcome.evidence.trial
    if trial is None or trial.move is None or runner.subject.forward is not runner.copies.model:
        return
    run, writer = trial.first, CodeWriter()
    main = runner.signature.main
    traced = trace_run(runner, run)
    calls, _ = writer.calls(traced.calls, "first")
    answer = _answer(runner, writer, traced, run, trial.keep[0])
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
    wrong = _cells(f"leaf.grad{turned}", trial.move[0], shape)
    right = _cells(f"leaf.grad{turned}", trial.keep[0], shape)
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
    found: list[str] = []

    def hook(path: str) -> Callable[..., None]:
        def note(module: nn.Module, args: tuple, output: torch.Tensor) -> None:
            if args and args[0].shape == ids.shape and torch.equal(args[0].cpu(), ids):
                found.append(path)

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
    yield from found


def padded_runs(runner: Runner, setting: Setting) -> Iterator[tuple[Run, list[int], str]]:
    """Yield calls without padding, with a row that is all padding, and with left padding.

    Each with the rows that hold a token, and what was done, in words.
    """
    inputs, signature = runner.inputs(setting), runner.signature
    every = list(range(signature.batch_of(inputs)))
    yield Run(inputs, setting), every, "nothing was hidden"
    for axis in padding.padded_axes(runner):
        real = signature.all_real(inputs, axis)
        real[1] = False
        masks = {mask.name: mask.value(real) for mask in runner.facts.masks_over(axis)}
        rest = [row for row in every if row != 1]
        yield Run({**inputs, **masks}, setting), rest, "row 1 was all padding"
        for left in (False, True):
            masks = padding.arguments(
                runner, axis, padding.real_tokens(runner, inputs, axis, left=left)
            )
            side = "left" if left else "right"
            yield Run({**inputs, **masks}, setting), rest, f"rows were {side}-padded"


def of_masked_row(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield bodies that count what is not finite in an answer, and in gradients."""
    for run, rows, when in padded_runs(runner, outcome.setting):
        writer, traced = CodeWriter(), trace_run(runner, run)
        calls, _ = writer.calls(traced.calls, "first")
        answer = _answer(runner, writer, traced, run, None)
        kept = "answer" if runner.signature.sequential else f"answer[{rows}]"
        yield (
            f"{writer.definitions()}\n\nmodel = build()\n{calls}\nanswer = {answer}\n"
            f"answer, count = {kept}, len(answer)\n"
            f'print(f"{{int((~answer.isfinite()).sum())}} of {{answer.numel()}} numbers of the '
            f'answer are not finite, when {when}")\n'
            "if not answer.isfinite().all():\n    sys.exit(1)\n"
            f"rows = {rows} if len(answer) == count else list(range(len(answer)))\n"
            "weights = torch.randn(answer[rows].shape, dtype=DTYPE)\n"
            "(answer[rows] * weights).sum().backward()\n"
            "bad = [name for name, parameter in model.named_parameters()\n"
            "       if parameter.grad is not None and not parameter.grad.isfinite().all()]\n"
            'print(f"gradients that are not finite: {bad}")\n'
            "sys.exit(int(bool(bad)))\n"
        )


def of_purity(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield bodies that compare what was passed with copies taken before."""
    for run, _, _ in padded_runs(runner, outcome.setting):
        writer = CodeWriter()
        complete = replace(run, inputs=runner.complete(run), setting=outcome.setting)
        traced = trace_run(runner, complete)
        calls, _ = writer.calls(traced.calls, "first", "    ")
        names = [name for name, _ in writer.tensors]
        if not names:
            continue
        kept = ", ".join(f"{name!r}: {name}.clone()" for name in names)
        now = ", ".join(f"{name!r}: {name}" for name in names)
        yield (
            f"{writer.definitions()}\n\nmodel = build()\nbefore = {{{kept}}}\n"
            f"with torch.no_grad():\n{calls}\nafter = {{{now}}}\n"
            "changed = [name for name in before if not torch.equal(before[name], after[name])]\n"
            'print(f"inputs that the call changed in place: {changed}")\n'
            "sys.exit(int(bool(changed)))\n"
        )


def of_reaches(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield the body that looks for parameters, or their rows, without a gradient."""
    names = [name for name, _ in runner.copies.model.named_parameters()]
    words = re.findall(r"[\w.]+", finding.note)
    name = next((word.strip(".") for word in words if word.strip(".") in names), None)
    if name is None:
        return
    part = re.search(r"of the \d+ (rows|columns) of", finding.note)
    lines = {"rows": "(gradient == 0).all(1)", "columns": "(gradient == 0).all(0)"}
    zero = lines[part[1]] if part else "(gradient == 0).all().reshape(1)"
    least = 2 if part else 1
    writer = CodeWriter()
    code = ["model = build()", "total = 0"]
    for place, seed in enumerate((0, 1)):
        run = Run(runner.inputs(outcome.setting, seed), outcome.setting)
        traced = trace_run(runner, run)
        code.append(writer.calls(traced.calls, f"output_{place}")[0])
        code.append(f"total = total + summed(output_{place})")
    yield (
        "def summed(output):\n"
        '    """Return one number of all that a model returned, with random weights."""\n'
        "    if isinstance(output, torch.Tensor):\n"
        "        if not output.is_floating_point():\n            return 0\n"
        "        generator = torch.Generator().manual_seed(7)\n"
        "        weights = torch.randn(output.shape, generator=generator, dtype=torch.float64)\n"
        "        return (output * weights).sum()\n"
        '    parts = output.values() if hasattr(output, "values") else output\n'
        "    parts = parts if hasattr(parts, '__iter__') else ()\n"
        "    return sum(summed(part) for part in parts if part is not None)\n\n\n"
        f"{writer.definitions()}\n\n" + "\n".join(code) + "\n"
        "if getattr(total, 'requires_grad', False):\n    total.backward()\n"
        f"parameter = model.get_parameter({name!r})\n"
        "gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)\n"
        f"dead = {zero}\n"
        f'print(f"{{int(dead.sum())}} of {{len(dead)}} {part[1] if part else "parameters"} of '
        f'{name} get no gradient")\n'
        f"sys.exit(int(int(dead.sum()) >= {least}))\n"
    )


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
        answer = _answer(runner, writer, traced, run, None)
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


def of_tying(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield the body that compares the output layer's weight with every embedding's."""
    switch = re.search(r"`(\w+)` is set", finding.note)
    path = finding.module or ""
    said = switch[1] if switch else ""
    yield (
        f"model = build()\noutput = model.get_submodule({path!r}).weight\n"
        "tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]\n"
        "tied = any(output is table for table in tables)\n"
        f'print(f"`{said}` is set; the weight of {path} is an embedding\'s: {{tied}}")\n'
        "sys.exit(int(not tied))\n"
    )


def of_precision(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield bodies that compare a lower precision with float64, and rounding every output."""
    if runner.subject.forward is not runner.copies.model:
        return
    found = re.search(r"in (float32|bfloat16|float16) answers", finding.note)
    low = f"torch.{found[1]}" if found else "torch.bfloat16"
    run, writer = Run(runner.inputs(outcome.setting), outcome.setting), CodeWriter()
    calls, _ = writer.calls(trace_run(runner, run).calls, "first", "        ")
    traced = trace_run(runner, run)
    writer.objects.append(("first", traced.taken[-1]))
    answer = _answer(runner, writer, traced, run, None)
    yield (
        f"LOW = {low}\n{writer.definitions()}\n\n\n"
        "def rounded(module, args, output):\n"
        "    if isinstance(output, torch.Tensor) and output.is_floating_point():\n"
        "        return output.to(LOW).to(output.dtype)\n\n\n"
        "def answer(model):\n    with torch.no_grad():\n"
        f"{calls}\n        return {answer}.double()\n\n\n"
        "model = build().to(LOW)\ntorch.set_default_dtype(torch.float32)\n"
        f"low = answer(model)\ntorch.set_default_dtype(torch.float64)\n"
        "torch.Tensor.half = torch.Tensor.float = torch.Tensor.bfloat16 = torch.Tensor.double\n"
        "model = model.double()\nexact = answer(model)\n"
        "for module in model.modules():\n    module.register_forward_hook(rounded)\n"
        "near = answer(model)\nsize = exact.pow(2).mean().sqrt()\n"
        "error, rounding = ((part - exact).pow(2).mean().sqrt() / size for part in (low, near))\n"
        'print(f"in {LOW} answers err by {error:.2e}, and rounding every module\'s output makes "\n'
        '      f"{rounding:.2e}; 16 times that is allowed")\n'
        "sys.exit(int(not error <= 16 * rounding + {torch.float32: 2e-5, torch.bfloat16: 5e-2,"
        " torch.float16: 1e-2}[LOW]))\n"
    )


def of_generation(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield bodies that generate, and score every token by one forward pass; then the trial's."""
    from querykey.laws.catalogue import generation
    from querykey.targets import generates

    main, setting = runner.signature.main, outcome.setting
    model: Any = runner.copies.model
    if callable(getattr(model, "generate", None)) and runner.subject.forward is model:
        tokens = runner.inputs(setting)[main.name]
        for start in range(0, tokens.shape[1] - generation.PROMPT + 1, generation.PROMPT):
            ids = tokens.roll(-start, 1)[:, : generation.PROMPT]
            code = _generating(runner, ids, setting, library=generates(model))
            if code:
                yield code
    yield from of_trial(runner, outcome, finding)


def _generating(runner: Runner, ids: torch.Tensor, setting: Setting, library: bool) -> str:
    """Return the body that calls the model's own generate on a prompt without padding."""
    from querykey.laws.catalogue import generation

    main, writer = runner.signature.main, CodeWriter()
    prompt = writer.tensor(ids, "prompt")
    count, new = ids.shape[1], generation.NEW
    lines = ["model = build()"]
    if library:
        lines += [
            "from transformers import GenerationConfig",
            f"model.generation_config = GenerationConfig(pad_token_id=-1, bos_token_id={main.low})",
            f"ids = model.generate({prompt}, do_sample=False, max_new_tokens={new})",
        ]
    else:
        with tracing(runner, Run({main.name: ids}, setting)) as (trace, watched):
            generation._by_own_method(watched.copies.of(setting), {main.name: ids}, main.name)
        call = trace.calls[0]
        arguments = [prompt, *(f"{key}={value!r}" for key, value in call.kwargs.items())]
        lines += [
            "torch.multinomial = lambda p, n=1, *rest, **more: p.topk(n, -1).indices  # no chance",
            f"ids = model.generate({', '.join(arguments)})",
        ]
    traced = trace_run(runner, Run(runner.signature.cut(runner.inputs(setting), 0, 7), setting))
    path = _place_of(runner, traced)
    echo = f", {runner.signature.echo}=ids[:, :-1]" if runner.signature.echo else ""
    lines += [
        "ids = ids[0] if isinstance(ids, tuple) else ids",
        f"ids = ids if ids.shape[1] > {count} else torch.cat([{prompt}, ids], 1)",
        f"with torch.no_grad():\n    output = model({main.name}=ids[:, :-1]{echo})",
        f"scores = output{path}[:, {count - 1} :]",
        f"taken = scores.gather(-1, ids[:, {count}:, None]).squeeze(-1)",
        "difference = float((scores.amax(-1) - taken).max() / scores.pow(2).mean().sqrt())",
        'print(f"generate takes a token that forward scores {difference:.3g} below the highest")',
        "sys.exit(int(not difference <= LIMIT))\n",
    ]
    return f"{writer.definitions()}\n\n" + "\n".join(lines)


def _place_of(runner: Runner, traced: TracedRun) -> str:
    """Return the code that reads the answer from an output, without the output's name."""
    writer = CodeWriter(objects=[("", traced.taken[-1])])
    return _place(runner, writer, traced.taken[-1], traced.run)


def _quoted(words: str) -> str:
    return words.replace("\\", "/").replace('"', "'").replace("{", "(").replace("}", ")")


TEMPLATES: dict[str, Callable[[Runner, Outcome, Finding], Bodies]] = {
    "causality.gradient": of_derivative,
    "padding.gradient": of_derivative,
    "masked-row": of_masked_row,
    "purity": of_purity,
    "gradient.reaches": of_reaches,
    "accumulation": of_accumulation,
    "tying": of_tying,
    "dtype.agree": of_precision,
    "cache.generate": of_generation,
}


def bodies(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield the bodies that may show a breach, the plainest first."""
    template = TEMPLATES.get(finding.law)
    if template:
        yield from template(runner, outcome, finding)
    if template not in (None, of_generation) or template is None:
        yield from of_trial(runner, outcome, finding)

