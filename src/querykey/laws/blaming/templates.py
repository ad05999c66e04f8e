"""The bodies of scripts: for every kind of law, the calls and the comparison, as plain torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from querykey.laws.blaming.agreement_template import of_agreement
from querykey.laws.blaming.coding import COMPARE, answer_code, place_code, quoted, run_code
from querykey.laws.blaming.gradient_templates import (
    Bodies,
    of_accumulation,
    of_derivative,
    of_reaches,
)
from querykey.laws.blaming.literals import CodeWriter
from querykey.laws.blaming.loss_templates import (
    of_count,
    of_hidden_labels,
    of_own_derivatives,
    of_shift,
)
from querykey.laws.blaming.path_templates import (
    of_autocast,
    of_checkpoint,
    of_compiling,
    of_exporting,
    of_kernels,
    of_reload,
    of_vocabulary,
)
from querykey.laws.blaming.tracing import TracedRun, trace_run, tracing
from querykey.laws.catalogue import padding
from querykey.laws.catalogue.accumulation import COUNT
from querykey.laws.finding import Finding
from querykey.laws.run import Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Outcome


def of_trial(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield the body that compares the two runs of a trial."""
    trial = outcome.evidence.trial
    if trial is None:
        return
    writer = CodeWriter()
    first, second = (trace_run(runner, run) for run in (trial.first, trial.second))
    code = run_code(runner, writer, first, "first")
    code += run_code(runner, writer, second, "second")
    x = answer_code(runner, writer, first, trial.first, trial.keep[0])
    y = answer_code(runner, writer, second, trial.second, trial.keep[1])
    words = f'WORDS = "the answers that must be equal differ, when {quoted(trial.what)}"'
    yield f"{writer.definitions()}\n\n{code}\nx = {x}\ny = {y}\n\n{words}{COMPARE}"


def padded_runs(runner: Runner, setting: Setting) -> Iterator[tuple[Run, list[int], str]]:
    """Yield calls without padding, with a row that is all padding, and with left padding.

    Each with the rows that hold a token, and what was done, in words.
    """
    inputs, signature = runner.inputs(setting), runner.signature
    every = list(range(signature.batch_of(inputs)))
    yield Run(inputs, setting), every, "no token was masked"
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
        answer = answer_code(runner, writer, traced, run, None)
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


def of_tying(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield the body that compares the output layer's weight with every embedding's."""
    switch = re.search(r"`(\w+)` is set", finding.note)
    path = finding.module or ""
    switch_name = switch[1] if switch else ""
    yield (
        f"model = build()\noutput = model.get_submodule({path!r}).weight\n"
        "tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]\n"
        "tied = any(output is table for table in tables)\n"
        f'print(f"`{switch_name}` is set; the weight of {path} is an embedding\'s: {{tied}}")\n'
        "sys.exit(int(not tied))\n"
    )


def of_precision(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield bodies that compare a lower precision with float64, and rounding every output."""
    if runner.subject.forward is not runner.copies.model:
        return
    match = re.search(r"in (float32|bfloat16|float16) answers", finding.note)
    low = f"torch.{match[1]}" if match else "torch.bfloat16"
    run, writer = Run(runner.inputs(outcome.setting), outcome.setting), CodeWriter()
    calls, _ = writer.calls(trace_run(runner, run).calls, "first", "        ")
    traced = trace_run(runner, run)
    writer.objects.append(("first", traced.taken[-1]))
    answer = answer_code(runner, writer, traced, run, None)
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
    return place_code(runner, writer, traced.taken[-1], traced.run)


def of_sums(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield the body for the count that a trainer tells, or for gradients of rows."""
    template = of_count if COUNT in finding.note else of_accumulation
    yield from template(runner, outcome, finding)


TEMPLATES: dict[str, Callable[[Runner, Outcome, Finding], Bodies]] = {
    "causality.gradient": of_derivative,
    "padding.gradient": of_derivative,
    "masked-row": of_masked_row,
    "purity": of_purity,
    "gradient.reaches": of_reaches,
    "accumulation": of_sums,
    "tying": of_tying,
    "dtype.agree": of_precision,
    "cache.generate": of_generation,
    "agreement": of_agreement,
    "vocabulary": of_vocabulary,
    "loss.shift": of_shift,
    "loss.padding": of_hidden_labels,
    "gradient.custom": of_own_derivatives,
    "paths.checkpoint": of_checkpoint,
    "paths.backend": of_kernels,
    "paths.reload": of_reload,
    "paths.autocast": of_autocast,
    "paths.compile": of_compiling,
    "paths.export": of_exporting,
}


def bodies(runner: Runner, outcome: Outcome, finding: Finding) -> Bodies:
    """Yield the bodies that may show a breach, the plainest first."""
    template = TEMPLATES.get(finding.law)
    if template:
        yield from template(runner, outcome, finding)
    if template not in (None, of_generation) or template is None:
        yield from of_trial(runner, outcome, finding)
