"""Try every law on every (architecture, head) pair of the installed `transformers`.

python benchmarks/laws.py                          # progress, a table of breaches, a line of JSON
python benchmarks/laws.py --store run.jsonl gpt2   # resumable; only targets that contain a word
python benchmarks/laws.py --write docs/dev/laws-zoo.md # and the page with the causes

To compare with an older release of transformers, keep what the older one shows and name it:
python benchmarks/laws.py --store older.jsonl roformer doge      # in the older environment
python benchmarks/laws.py --older older.jsonl --write docs/dev/laws-zoo.md

Who finds which planted faults, ours and public checkers: benchmarks/laws_peers.py.
"""

import argparse
import fnmatch
import json
import math
import os
import random
import re
import resource
import statistics
import sys
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models: a second thread only waits

from querykey.laws import Limits, Report, check, stream
from querykey.show import print_table
from querykey.targets import pairs

ROBERTAS = "camembert data2vec-text roberta roberta-prelayernorm xlm-roberta xlm-roberta-xl xmod"
# What was looked into: (architectures, laws, where in transformers/models, and why).
CAUSES = [
    ("*", "accumulation", "",
     "it takes num_items_in_batch among its **kwargs and hands it to no loss (transformers 47688)"),
    ("bart bigbird_pegasus blenderbot blenderbot-small marian mbart mvp pegasus plbart trocr "
     "whisper", "loss.shift", "",
     "every answer is compared with the label at its own place (transformers 27517, 30105)"),
    ("bamba", "cache.*", "bamba/modeling_bamba.py:966",
     "without position_ids positions restart at the cache (its generate hands them in)"),
    ("bigbird_pegasus luke", "tying",
     "bigbird_pegasus/modeling_bigbird_pegasus.py:2291, luke/modeling_luke.py:1020",
     "the output layer's weight is not among `_tied_weights_keys`"),
    ("blt", "*", "blt/modeling_blt.py:1209, :1245",
     "bytes are grouped into patches, and patches attended to, without the mask and the cache"),
    ("ctrl", "purity", "ctrl/modeling_ctrl.py:314",
     "the caller's inputs_embeds are scaled in place"),
    ("deepseek_v4", "padding.left", "deepseek_v4/modeling_deepseek_v4.py:391",
     "the compressor is handed no mask and pools padding into its windows"),
    ("deepseek_v4", "cache.reorder", "deepseek_v4/modeling_deepseek_v4.py:156",
     "reorder_cache is inherited: it moves keys and values, and not what the compressor keeps"),
    ("doge", "paths.backend", "doge/modeling_doge.py:348",
     "a BlockMask is not merged into the dynamic mask, so with FlexAttention nothing hides the "
     "future"),
    ("fsmt", "*", "fsmt/modeling_fsmt.py:852",
     "with the cache on, the default, neither the future nor padding of targets is hidden"),
    ("git", "purity", "git/modeling_git.py:109", "positions are added to inputs_embeds in place"),
    ("git", "cache.*", "git/modeling_git.py:838",
     "without an image the mask is still widened over image tokens"),
    ("led", "cache.step", "led/modeling_led.py:1647",
     "a single token is given no mask, so with the cache it sees padding"),
    ("mamba falcon_mamba jamba zamba", "cache.[cp]*", "falcon_mamba/modeling_falcon_mamba.py:265",
     "a later chunk starts from a state of zeros"),
    ("minimax", "cache.reorder", "minimax/modeling_minimax.py:77",
     "the cache selects rows of its linear states, but its reorder_cache is the inherited one"),
    ("moshi", "cache.*", "moshi/modeling_moshi.py:775",
     "the cache keeps a window, the mask of one call has none"),
    ("mra", "gradient.reaches", "mra/modeling_mra.py:364",
     "without its GPU kernel attention is zeros"),
    ("nemotron_h nemo_speechlm zamba2", "cache.[sp]*", "nemotron_h/modeling_nemotron_h.py:295",
     "a chunk clamps dt, a single step (:219) does not"),
    ("prophetnet", "cache.*", "prophetnet/modeling_prophetnet.py:805, :1174",
     "one call mixes positions (next line), a step with the cache does not, and gets no mask"),
    ("prophetnet", "*", "prophetnet/modeling_prophetnet.py:805",
     "relative positions are permuted to (batch, token, stream, head) and read as (batch, stream, "
     "head, token): with permute(0, 1, 4, 2, 3) these laws hold"),
    ("recurrent_gemma", "cache.[sc][th]*", "recurrent_gemma/modeling_recurrent_gemma.py:651, :444",
     "without position_ids positions restart at the cache, whose first layers keep no keys (its "
     "generate hands them in); and a later chunk's convolution starts from zeros"),
    ("recurrent_gemma", "cache.padded padding.left",
     "recurrent_gemma/modeling_recurrent_gemma.py:445",
     "the block takes attention_mask and does not use it: its convolution reads padding"),
    ("recurrent_gemma", "cache.reorder", "recurrent_gemma/modeling_recurrent_gemma.py:298",
     "the recurrence keeps its state on the module, where no cache can reorder it"),
    ("reformer", "cache.*", "reformer/modeling_reformer.py:860",
     "with the cache no mask is applied, so padding is seen; its generate drops the mask (:2276)"),
    (ROBERTAS, "cache.generate", "../generation/utils.py:906, roberta/modeling_roberta.py:155",
     "generate counts positions from 0, the embeddings from padding_idx + 1"),
    ("rwkv", "cache.*", "rwkv/modeling_rwkv.py:251",
     "a step's shifted state lacks its token axis and is spread over the batch"),
    ("yoso", "padding.*", "yoso/modeling_yoso.py:356",
     "a mask of 0 and -10000 is expected, one of 1 and 0 is given (:684): it hides nothing"),
]  # fmt: skip


# What a newer release mended: (architectures, what it was and is, with its place today).
MENDED = [
    ("big_bird megatron-bert rembert roformer",
     "every head got create_bidirectional_mask; now decoders get create_causal_mask "
     "(big_bird/modeling_big_bird.py:1631, megatron_bert/modeling_megatron_bert.py:637, "
     "rembert/modeling_rembert.py:569, roformer/modeling_roformer.py:727)"),
    ("doge", "the causal mask was left out where is_causal would do, and the mask of chosen keys "
     "took its place; now it is always made (doge/modeling_doge.py:571)"),
]  # fmt: skip


def cause(target: str, law: str) -> tuple[str, str]:
    name = target.split(":")[1]
    for models, laws, where, why in CAUSES:
        if models != "*" and name not in models.split():
            continue
        if any(fnmatch.fnmatchcase(law, pattern) for pattern in laws.split()):
            return where, why
    return "", "not looked into"


def survey(words: list[str], store: Path | None, workers: int) -> list[Report]:
    names = [f"hf:{model_type}:{head}" for model_type, head in pairs()]
    names = [name for name in names if not words or any(word in name for word in words)]
    made = []
    for report in stream(names, workers=workers, limits=Limits(seconds=180), store=store):
        made.append(report)
        words_ = f"{len(made)}/{len(names)} {report.target}"
        print(f"\r{words_:<60}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return made


def processor_seconds(reports: list[Report], count: int) -> list[float]:
    """Return what checking takes of one processor, for targets drawn at random.

    Seconds by the clock mean little where other processes run beside.
    """
    built = sorted(report.target for report in reports if report.built)
    spent = []
    for target in random.Random(0).sample(built, min(count, len(built))):
        began = time.process_time()
        check(target)
        spent.append(time.process_time() - began)
    return spent[1:] or spent  # the first imports transformers


def summary(reports: list[Report], seconds: float) -> dict:
    built = [report for report in reports if report.built]
    verdicts = Counter(finding.verdict for report in built for finding in report.laws)
    return {
        "benchmark": "laws",
        "targets": len(reports),
        "built": len(built),
        "seconds": round(seconds, 1),
        "median_seconds": round(statistics.median(report.seconds for report in built), 3),
        "slowest": max((round(report.seconds, 1), report.target) for report in built),
        "with_violations": sum(bool(report.violations) for report in built),
        "verdicts": dict(verdicts),
        "versions": built[0].versions,
    }


def page(reports: list[Report], said: dict, older: list[Report]) -> str:
    """What was found, as the page docs/dev/laws-zoo.md."""
    found = [(r, f) for r in reports for f in r.laws if f.verdict == "violated"]
    limits = sorted({(r.target, f.law, f.note) for r in reports for f in r.laws
                     if f.verdict == "limitation"})  # fmt: skip
    odd = [(r, f) for r in reports for f in r.laws if f.verdict in ("tie", "error", "timeout")]
    by_processor = (
        f"Of {said['measured']} drawn at random, one check takes "
        f"{said['median_processor_seconds']} s of a processor (median)."
        if said["measured"]
        else ""
    )
    lines = [
        "# The laws on Hugging Face architectures",
        "",
        f"`python benchmarks/laws.py --write docs/dev/laws-zoo.md` tried every law on "
        f"{said['built']} of {said['targets']} pairs of architecture and text head of transformers "
        f"{said['versions']['transformers']} with torch {said['versions']['torch']}, shrunk, with "
        f"random weights, in {said['seconds']:.0f} s with {said['workers']} worker"
        f"{'s' * (said['workers'] != 1)} "
        f"({said['cpu_seconds']:.0f} s of processor time); by the clock the median is "
        f"{said['median_seconds']} s, the slowest {said['slowest'][1]} with {said['slowest'][0]} "
        f"s, slower where other processes run beside. {by_processor} "
        f"Verdicts: {', '.join(f'{n} {v}' for v, n in said['verdicts'].items())}.",
        "",
        "## Violated, and why",
        "",
        "Each was looked into. The cause is a place in `transformers/models/`.",
        "",
        "| target | law | deviation | module | cause | why |",
        "|---|---|---|---|---|---|",
    ]
    for report, f in found:
        where, why = cause(report.target, f.law)
        where = where or (f.source or "").rpartition(", ")[2].partition("/models/")[2]
        size = "inf" if f.deviation is None else f"{f.deviation:.1e}"
        words = f"| {report.target} | {f.law} | {size} | {f.module or ''} | {where} | {why} |"
        lines.append(words)
    lines += contract(reports)
    lines += since(reports, older)
    lines += ["", "## Limitations", "", "| target | law | reason |", "|---|---|---|"]
    lines += [f"| {target} | {law} | {note.split(' (')[0]} |" for target, law, note in limits]
    lines += [
        "",
        "## Ties and failures",
        "",
        "| target | law | verdict | note |",
        "|---|---|---|---|",
    ]
    lines += [f"| {r.target} | {f.law} | {f.verdict} | {f.note} |" for r, f in odd]
    lines += ["", "## Not built", ""]
    lines += [f"- {r.note}" for r in reports if not r.built]
    return "\n".join(lines) + "\n"


def since(reports: list[Report], older: list[Report]) -> list[str]:
    """Return what the page says of an older release: the laws broken then, and now."""
    if not older:
        return []
    now = {report.target: report for report in reports}
    lines = [
        "",
        f"## What changed since transformers {older[0].versions['transformers']}",
        "",
        "The same check in an environment of its own with the older release "
        "(transformers 48745 and 48748 report what was wrong).",
        "",
        "| target | broken then | broken now | what changed |",
        "|---|---|---|---|",
    ]
    for report in older:
        name = report.target.split(":")[1]
        why = next((why for names, why in MENDED if name in names.split()), "")
        then, today = (
            ", ".join(f"{f.law} ({f.deviation or math.inf:.2g})" for f in one.violations)
            for one in (report, now[report.target])
        )
        if then != today:
            lines.append(f"| {report.target} | {then} | {today or 'nothing'} | {why} |")
    return lines


def contract(reports: list[Report]) -> list[str]:
    """Return what the page says of num_items_in_batch, for every head that was built."""
    groups: dict[str, list[str]] = {
        "takes it and divides by it": [],
        "takes it among its keywords and drops it": [],
        "does not take it, so that the trainer divides": [],
        "returns no loss for labels of tokens": [],
    }
    kept, dropped, untold, none = groups
    for report in (r for r in reports if r.built):
        loss = report.about.get("loss", "")
        told = [f for f in report.laws if f.law == "accumulation" and "_in_batch" in f.note]
        ratio = (
            re.search(r"with ([\d.]+) times|, ([\d.]+) times as", told[0].note) if told else None
        )
        name = report.target.removeprefix("hf:")
        name += f" ({ratio[1] or ratio[2]}x)" if ratio else ""
        group = dropped if told else untold if "_in_batch" not in loss else kept
        groups[group if loss else none].append(name)
    lines = [
        "",
        "## Accumulation, head by head",
        "",
        "Hugging Face's Trainer tells every head that accepts it the number of labels in all its "
        "batches, `num_items_in_batch`, and does not divide the loss by the number of steps. A "
        "head that drops the number trains with a loss that is too large (transformers 47688). In "
        "brackets: how many times too large over three steps, of rows of unequal length.",
        "",
        "| the head | how many | which |",
        "|---|---|---|",
    ]
    return lines + [f"| {what} | {len(n)} | {', '.join(n)} |" for what, n in groups.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--older", type=Path, help="a store that an older transformers filled")
    parser.add_argument("--measured", type=int, default=25, help="how many are timed alone")
    options = parser.parse_args()
    began = time.perf_counter()
    reports = survey(options.words, options.store, options.workers)
    rows = [
        (report.target, f.law, f.verdict, f.deviation or 0.0, f"{f.module} {f.source}", f.note)
        for report in reports
        for f in report.laws
        if f.verdict in ("violated", "limitation", "error", "timeout", "tie", "advice")
    ]
    rows += [(r.target, "", "not built", 0.0, "", r.note) for r in reports if not r.built]
    print_table(("target", "law", "verdict", "deviation", "module", "note"), rows)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = summary(reports, time.perf_counter() - began) | {
        "workers": options.workers,
        "cpu_seconds": round(spent.ru_utime + spent.ru_stime, 1),
    }
    alone = processor_seconds(reports, options.measured)
    said["measured"] = len(alone)
    said["median_processor_seconds"] = round(statistics.median(alone or [0.0]), 3)
    older = []
    if options.older:
        older = [Report.from_json(json.loads(line)) for line in options.older.open()]
    if options.write:
        reports.sort(key=lambda report: report.target)
        options.write.write_text(page(reports, said, older))
    print(json.dumps(said))


if __name__ == "__main__":
    main()
