"""The cost of every target that can be built: agree, refused with the reason, or wrong.

python benchmarks/cost_zoo.py                            # a line per target, a last line of JSON
python benchmarks/cost_zoo.py --write docs/dev/cost-zoo.md   # the same as a page
python benchmarks/cost_zoo.py --only bert,gpt2

"Agree" means: the formula, by symbolic sizes (or, where these do not get through, by interpolation
that meets its held-out points), gives what a real run of the model at other sizes costs, counted
operation by operation, saved bytes included; and matrix products once more by torch's own counter.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models: a second thread only waits

import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import querykey as qk
from querykey.costs.command import inputs_of
from querykey.costs.counting.counts import counts_of
from querykey.costs.counting.passes import PassOptions, PassSetting, run_pass
from querykey.costs.inputs import Inputs
from querykey.costs.sums import sums_at
from querykey.targets import PRESETS, TargetError, build, pairs

POINTS = [
    {"batch": 3, "seq": 10, "target_seq": 6},
    {"batch": 3, "seq": 6, "target_seq": 5},
    {"batch": 4, "seq": 40, "target_seq": 37},
    {"batch": 3, "seq": 14, "target_seq": 11},
    {"batch": 3, "seq": 23, "target_seq": 19},
    {"batch": 3, "seq": 48, "target_seq": 32},
    {"batch": 3, "seq": 128, "target_seq": 256},
    {"batch": 3, "seq": 256, "target_seq": 512},
]
OPTIONS = PassOptions(attention="math")
IS_FAKE = "transformers.utils.import_utils.is_fake_tensor"


def grouped(a, b, *rest, out_shape=None, **named) -> int:
    """torch's counter has no formula for it: every row of `a` meets one matrix of `b`."""
    rows, inner = (a[0], a[1]) if len(a) == 2 else (a[0] * a[1], a[2])
    return 2 * rows * inner * b[-1]


def convolution_back(
    out, x, w, bias, stride, padding, dilation, transposed, out_padding, groups, mask, **named
) -> int:
    """torch's counter forgets the groups of the gradient of the weight."""
    each = 2 * w[1] * w[0]
    for size in w[2:]:
        each *= size
    places = x if transposed else out
    for axis, size in enumerate(places):
        each *= 1 if axis == 1 else size
    return each * (int(mask[0]) + int(mask[1]))


ORACLE = {
    torch.ops.aten._grouped_mm: grouped,
    torch.ops.aten.convolution_backward: convolution_back,
}


def torch_counts(target, example) -> tuple[int, int]:
    """FLOPs of matrix products forward and backward, by torch's counter, in a real run."""
    with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False):
        with FlopCounterMode(display=False, custom_mapping=ORACLE) as forward:
            out = target.model(**example)
            first = next(v for v in _tensors(out) if v.is_floating_point())
        with FlopCounterMode(display=False, custom_mapping=ORACLE) as backward:
            first.sum().backward()
    target.model.zero_grad()
    return forward.get_total_flops(), backward.get_total_flops()


def real_counts(target, example, traced: bool) -> tuple[int, int, int, int, int]:
    """The same, and pointwise work and saved bytes, by our own counter, in a real run.

    Some models look at the values of a mask, and leave it out where it hides nothing, unless they
    are traced: `traced` makes a real run take that branch, as a pass without values must. What our
    own models do on a CPU alone, to refuse wrong values, is no cost of the model and left out.
    """
    inputs = Inputs((), example)
    checks = mock.patch("querykey.attention.inputs._check_decay_values")
    with torch.random.fork_rng(), mock.patch(IS_FAKE, return_value=traced), checks:
        trace = run_pass(target.model, inputs, OPTIONS, PassSetting({}))
    found = sums_at(counts_of(trace, target.model, {}).own, {})
    names = ("forward", "backward", "pointwise", "pointwise_backward", "saved")
    return tuple(int(sum(n for (_, m), n in found.items() if m == name)) for name in names)


def _tensors(out):
    if isinstance(out, torch.Tensor):
        yield out
    elif isinstance(out, dict):
        for each in out.values():
            yield from _tensors(each)
    elif isinstance(out, tuple | list):
        for each in out:
            yield from _tensors(each)


def judge(name: str) -> dict:
    """What came of one target."""
    began = time.process_time()
    row = {"target": name, "state": "agree", "why": "", "engine": "", "unknown": [], "seconds": 0.0}
    row["code"] = code()
    try:
        target = build(name)
    except TargetError as error:
        return {**row, "state": "not built", "why": str(error)}
    inputs = inputs_of(target)
    try:
        try:
            report = qk.cost(target.model, inputs, attention="math", engine="symbolic")
        except qk.CostError:
            report = qk.cost(target.model, inputs, attention="math", engine="interpolation")
    except qk.CostError as error:
        row |= {"state": "wrong" if "disagree" in str(error) else "refused", "why": str(error)}
    else:
        row |= {"engine": report.engine, "unknown": sorted(report.unknown)}
        row |= {"formula": str(report.flops.forward), "valid": str(report.valid)}
        try:
            row |= compare(target, report)
        except RuntimeError as error:
            row |= {
                "state": "refused",
                "why": f"a real run fails: {' '.join(str(error).split())[:200]}",
            }
    return {**row, "seconds": time.process_time() - began}


def compare(target, report) -> dict:
    """Hold the formula against real runs, at the first sizes at which it says it holds."""
    sizes = next((p for p in POINTS if not report.valid.broken(p)), None)
    if sizes is None:
        return {"state": "refused", "why": f"holds only for {report.valid}"}
    point = report.at(**{size: sizes[size] for size in report.symbols})
    example = made(target, sizes)
    flops = point.flops
    ours = (flops.forward, flops.backward, flops.pointwise, flops.pointwise_backward)
    ours = (*ours, point.saved_bytes)
    real = real_counts(target, example, traced=False)
    traced = ours != real and ours == real_counts(target, example, traced=True)
    theirs = torch_counts(target, example)
    if ours != real and not traced:
        return {"state": "wrong", "why": f"formula {ours}, a real run {real} at {sizes}"}
    if ours[:2] != theirs:
        return {"state": "wrong", "why": f"formula {ours[:2]}, torch's counter {theirs}"}
    return {"traced": traced, "padded": traced and padded(target, sizes)}


def made(target, sizes, masks: bool = False) -> dict:
    """Real inputs; with `masks` also those, and the last token of the first row is padding."""
    generator = torch.Generator().manual_seed(0)
    wanted = [e for e in target.inputs if e.required or (masks and e.kind == "mask")]
    example = {each.name: each.make(sizes, generator) for each in wanted}
    for each in wanted if masks else ():
        if each.kind == "mask":
            example[each.name][0, -1] = 0
    return example


def padded(target, sizes) -> bool:
    """Whether formula and plain real run are equal where a mask is given, and hides something."""
    masks = {e.name: qk.tokens(*e.axes, high=2) for e in target.inputs if e.kind == "mask"}
    try:
        inputs = {**inputs_of(target), **masks}
        report = qk.cost(target.model, inputs, attention="math", engine="symbolic")
        point = report.at(**{size: sizes[size] for size in report.symbols})
    except qk.CostError:
        return False
    flops = point.flops
    ours = (flops.forward, flops.backward, flops.pointwise, flops.pointwise_backward)
    example = made(target, sizes, masks=True)
    return bool(masks) and (*ours, point.saved_bytes) == real_counts(target, example, False)


def survey(names: list[str], file: Path | None) -> list[dict]:
    """A row per target; those in the file are taken from it, new ones are added to it."""
    known = {}
    if file and file.exists():
        known = {row["target"]: row for row in map(json.loads, file.read_text().splitlines())}
    rows = []
    for name in names:
        row = known.get(name) or judge(name)
        if file and name not in known:
            with file.open("a") as out:
                print(json.dumps(row), file=out)
        rows.append(row)
        said = row["why"] or row.get("formula", "")
        print(f"{row['state']:<10}{name:<40}{row['engine']:<14}{row['seconds']:6.1f} s  {said}")
        sys.stdout.flush()
    return rows


def summary(rows: list[dict]) -> dict:
    built = [row for row in rows if row["state"] != "not built"]
    count = {s: sum(row["state"] == s for row in built) for s in ("agree", "refused", "wrong")}
    return {
        "benchmark": "cost_zoo",
        **count,
        "of": len(built),
        "agree_percent": round(100 * count["agree"] / len(built), 1),
        "symbolic": sum(row["engine"] == "symbolic" for row in built),
        "interpolated": sum(row["engine"] == "interpolation" for row in built),
        "without_formula": sorted({op for row in built for op in row["unknown"]}),
        "traced": sum(row.get("traced", False) for row in built),
        "padded": sum(row.get("padded", False) for row in built),
        "padded_of": sum(row.get("traced", False) and "padded" in row for row in built),
        "states": len({row["code"] for row in rows}),
        "agree_untraced": sum(r["state"] == "agree" and not r.get("traced") for r in built),
        "median_seconds": round(statistics.median(row["seconds"] for row in built), 2),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


GATHERED = [
    "The rows were gathered from several states of the code (`--rows` keeps what was done).",
    "",
]


def code() -> str:
    """The state of the code that is measured."""
    tree = ["git", "rev-parse", "HEAD:src/querykey"]
    return subprocess.run(tree, capture_output=True, text=True, check=True).stdout.strip()[:12]


def page(rows: list[dict], total: dict) -> str:
    lines = [
        "# The zoo: what every target costs",
        "",
        f"`python benchmarks/cost_zoo.py --write docs/dev/cost-zoo.md` derived formulas for the "
        f"{total['of']} targets of transformers {total['transformers']} that build (torch "
        f"{total['torch']}): {total['agree']} agree ({total['agree_percent']} %), "
        f"{total['refused']} refused with the reason, {total['wrong']} wrong; {total['symbolic']} "
        f"by symbolic sizes, {total['interpolated']} by interpolation; median "
        f"{total['median_seconds']} s of one core.",
        *([f"{total['not_run']} more were not run yet."] if total["not_run"] else []),
        "",
        "A formula agrees when it gives, at sizes not used to derive it, the FLOPs forward and "
        "backward and the saved bytes of a real run on the CPU with math attention (counted "
        "operation by operation), and the FLOPs that torch's FlopCounterMode counts in a real run "
        "(with the two formulas it lacks or has wrong, grouped products and the backward pass of "
        "grouped convolutions, written out in the script).",
        "",
        "Each formula comes from one engine (symbols, else interpolation) and is held against real "
        "runs; the check of one engine by the other, which `qk.cost` does by default, is not part "
        "of this survey.",
        "",
        *(GATHERED if total["states"] > 1 else []),
        f"Against a plain real run everything, pointwise work included, is equal in "
        f"{total['agree_untraced']} of {total['of']}. "
        f"{total['traced']} more look at the values of a mask and leave it out where it hides "
        "nothing, which a pass without values cannot know: the formula is that of the mask in "
        "use. They are equal to a real run that is made to take that branch, "
        f"and {total['padded']} of the {total['padded_of']} that were tried to a plain real run "
        "with a mask that hides something; "
        "matrix products are the same on both branches.",
        "",
        "## Operations without a formula",
        "",
        ", ".join(f"`{op}`" for op in total["without_formula"]) or "None.",
        "",
    ]
    for state in ("wrong", "refused"):
        found = [f"- `{row['target']}`: {row['why']}" for row in rows if row["state"] == state]
        lines += [f"## {state.capitalize()}: {len(found)}", ""]
        if state == "refused":
            lines += ["By `qk.cost`, or here because no real run could confirm its formula.", ""]
        lines += [*found, ""]
    lines += [
        "## Agree",
        "",
        "| target | FLOPs forward | holds for | engine |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row['target']} | {row['formula'].replace('**', '^').replace('*', ' ')} "
        f"| {row['valid']} | {row['engine']} |"
        for row in rows
        if row["state"] == "agree"
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, help="also write the list as a Markdown page")
    parser.add_argument("--only", default="", help="model types, separated by commas")
    parser.add_argument("--rows", type=Path, help="keep what is done here, and go on from it")
    parser.add_argument("--known", action="store_true", help="only what is in --rows, run nothing")
    parser.add_argument("--part", default="0/1", help="the i-th of n parts, as 0/2")
    options = parser.parse_args()
    wanted = set(filter(None, options.only.split(",")))
    names = [f"hf:{kind}:{head}" for kind, head in pairs() if not wanted or kind in wanted]
    names += [] if wanted else list(PRESETS)
    part, parts = map(int, options.part.split("/"))
    every = len(names)
    if options.known:
        known = {json.loads(line)["target"] for line in options.rows.read_text().splitlines()}
        names = [name for name in names if name in known]
    rows = survey(names[part::parts], options.rows)
    total = summary(rows) | {"not_run": every - len(rows)}
    if options.write:
        options.write.write_text(page(rows, total))
    print(json.dumps(total))


if __name__ == "__main__":
    main()
