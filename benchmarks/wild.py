"""Try the laws on public models outside transformers: packages and repositories as they are.

python benchmarks/wild.py --list                      # what it needs, each with its pinned version
WILD=folder python benchmarks/wild.py --store kept    # check what is there, a process for each
WILD=folder python benchmarks/wild.py books mingpt    # one file of recipes, one model
python benchmarks/wild.py --store kept --write docs/laws-wild.md    # the page, from what was kept
python benchmarks/wild.py mingpt --update docs/laws-wild.md    # only the rows of these models

The code that is checked is not in this repository, and nothing here fetches it. The file
`wild_models/found.py` says where it must lie; each recipe in `wild_models/` imports it, makes a
small model and, where the model's interface does not say it, shows an input. A recipe whose code
is not there is passed over.
"""

import argparse
import ast
import importlib
import json
import multiprocessing
import os
import re
import sys
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models: a second thread only waits

import torch

import querykey as qk
import querykey.laws

MODELS = Path(__file__).parent / "wild_models"
FILES = ("language", "books", "libraries", "efficient", "recurrent", "series", "audio", "vision")
SECONDS = 300
sys.path.insert(0, str(MODELS))

from pins import PINS  # noqa: E402 - beside the recipes
from triage import CAUSES, cause  # noqa: E402


def recipes(words: list[str]) -> list[tuple[str, str]]:
    """Return (file, function) for every recipe, or for those of these files and names."""
    found = []
    for file in FILES:
        tree = ast.parse((MODELS / f"{file}.py").read_text())
        names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        found += [(file, name) for name in names if not name.startswith("_")]
    return [pair for pair in found if not words or set(words) & set(pair)]


def work(file: str, name: str, kept: Path) -> None:
    """Run in a process of its own: make one model, check it, keep the report."""
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        target = getattr(importlib.import_module(file), name)()
        model = target.model if isinstance(target, qk.Subject) else target
        report = {"class": type(model).__name__, **qk.check(target).as_json()}
    except FileNotFoundError as error:
        report = {"absent": str(error)}
    except BaseException as error:  # a package may end its process
        report = {"unbuilt": f"{type(error).__name__}: {error}"[:300]}
    kept.write_text(json.dumps({"file": file, "name": name, **report}))
    os._exit(0)


def survey(pairs: list[tuple[str, str]], store: Path) -> list[dict]:
    """Check every model that is not kept yet, one process after the other; return all reports."""
    store.mkdir(parents=True, exist_ok=True)
    context, reports = multiprocessing.get_context("fork"), []
    for file, name in pairs:
        kept = store / f"{name}.json"
        if not kept.exists():
            began = time.monotonic()
            process = context.Process(target=work, args=(file, name, kept))
            process.start()
            process.join(SECONDS)
            if process.is_alive():
                process.kill()
                kept.write_text(json.dumps({"file": file, "name": name, "unbuilt": "too slow"}))
            print(line(json.loads(kept.read_text()), time.monotonic() - began), flush=True)
        reports.append({"file": file, "name": name, **json.loads(kept.read_text())})
    return reports


def line(report: dict, seconds: float) -> str:
    """Say in one line what came of one model."""
    if "laws" not in report:
        return f"{report['name']:26} {report.get('absent') or report.get('unbuilt')}"
    broken = [law["law"] for law in report["laws"] if law["verdict"] == "violated"]
    return f"{report['name']:26} {report['kind']:16} {seconds:4.0f} s  {' '.join(broken)}"


def is_checked(report: dict) -> bool:
    """Return whether laws could be tried on a model at all."""
    return "laws" in report and report["kind"] != "unknown"


def shortened(reason: str) -> str:
    """Return the first line of a reason, with files by their names alone."""
    return re.sub(r"/[\w.+@/-]*/", "", reason.splitlines()[0])[:160]


def breaches(checked: list[dict]) -> list[str]:
    """Return a row for every violation: its cause, and why."""
    rows = []
    for report in checked:
        for law in report["laws"]:
            if law["verdict"] == "violated":
                where, why = cause(report["name"], law["law"])
                size = law["deviation"]
                number = "not finite" if size is None else f"{size:.1e}"
                rows.append(f"| {report['name']} | {law['law']} | {number} | {where} | {why} |")
    return rows


def taken_for(report: dict) -> str:
    """Return the row that says what a model was taken for, and how many laws it obeys."""
    about, held = report["about"], sum(law["verdict"] == "holds" for law in report["laws"])
    facts = [about.get(key, "") for key in ("input", "padding mask", "cache")]
    cells = (report["name"], report["kind"], *facts, held)
    return "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |"


JOINED = "All rows are of one version of the laws, but for a few models that were run again later."


def page(reports: list[dict]) -> str:
    """Return what was found, as the page docs/laws-wild.md."""
    checked = [report for report in reports if is_checked(report)]
    broken = [(r, law) for r in checked for law in r["laws"] if law["verdict"] == "violated"]
    models = {r["name"] for r, _ in broken}
    verdicts = Counter(law["verdict"] for r in checked for law in r["laws"])
    sources = Counter(r["file"] for r in checked)
    false = [row for row in broken if cause(row[0]["name"], row[1]["law"])[0] == "FALSE"]
    unread = sum(cause(r["name"], law["law"])[0] == "" for r, law in broken)
    classes = len({(r["file"], r["target"]) for r in checked})
    lines = [
        "# The laws on public models",
        "",
        f"`python benchmarks/wild.py --write docs/laws-wild.md` tried every law on {len(checked)} "
        f"small configurations with random weights, of at least {classes} model classes outside "
        f"`transformers`. They come from {len(PINS)} public packages and repositories at the "
        "versions below; their code is not in this repository. "
        f"By subject: {', '.join(f'{n} {f}' for f, n in sources.items())}. Verdicts: "
        + ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
        + f". {len(broken)} violations in {len(models)} models; {len(false)} of them are false, "
        f"{unread} not read yet.",
        "",
        "## Violated, and why",
        "",
        "A cause is a place in the package or repository, found by reading its code; FALSE means "
        f"that the code is right and the verdict is wrong. {JOINED}",
        "",
        "| model | law | deviation | cause | why |",
        "|---|---|---|---|---|",
    ]
    lines += [
        *sorted(breaches(checked)),
        "",
        "## Checked",
        "",
        "| model | taken for | input | mask | cache | holds |",
        "|---|---|---|---|---|---|",
    ]
    lines += map(taken_for, sorted(checked, key=lambda r: (r["file"], r["name"])))
    lines += ["", "## Not checked", ""]
    for report in reports:
        if not is_checked(report):
            laws = report.get("laws")
            why = (
                laws[0]["note"]
                if laws
                else report.get("absent") or report.get("unbuilt") or report.get("crash")
            )
            lines.append(f"- {report['name']}: {shortened(str(why))}")
    lines += ["", "## Versions", ""]
    lines += [f"- {source} {version}" for source, version in PINS.items()]
    return "\n".join(lines) + "\n"


def updated(page: str, reports: list[dict]) -> str:
    """Return the page with the rows of these models as they are now, and their names in a line."""
    checked = [report for report in reports if is_checked(report)]
    names = {report["name"] for report in checked}
    before, broken, after = re.split(
        r"(?<=\|---\|---\|---\|---\|---\|\n)|(?=\n## Checked)", page, maxsplit=2
    )
    rows = [row for row in broken.splitlines() if row.split("|")[1].strip() not in names]
    rows += breaches(checked)
    cells = [[cell.strip() for cell in row.split("|")] for row in rows]
    counts = (
        f"{len(rows)} violations in {len({row[1] for row in cells})} models; "
        f"{sum(row[4] == 'FALSE' for row in cells)} of them are false, "
        f"{sum('not read yet' in row[5] for row in cells)} not read yet."
    )
    before = re.sub(r" Verdicts: .*", " " + counts, before)
    before = re.sub(rf"(?s)({re.escape(JOINED)}).*?\n\n", r"\1", before)
    latest = f" The latest run tried {len(names)} models again: {', '.join(sorted(names))}."
    before = before.replace(JOINED, f"{JOINED}{latest}\n\n")
    for report in checked:
        after = re.sub(rf"(?m)^\| {report['name']} \|.*$", lambda _, r=report: taken_for(r), after)
    return before + "\n".join(sorted(rows)) + "\n" + after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="files of recipes, or names of models")
    parser.add_argument("--list", action="store_true", help="say what is needed, and stop")
    parser.add_argument("--store", type=Path, default=Path("wild-reports"), help="kept reports")
    parser.add_argument("--write", type=Path, help="write the page to this file")
    parser.add_argument("--update", type=Path, help="write the rows of these models into this page")
    given = parser.parse_args()
    if given.list:
        print("\n".join(f"{source} {version}" for source, version in PINS.items()))
        return
    reports = survey(recipes(given.words), given.store)
    if given.write:
        given.write.write_text(page(reports))
    if given.update:
        given.update.write_text(updated(given.update.read_text(), reports))
    checked = [report for report in reports if is_checked(report)]
    broken = sum(law["verdict"] == "violated" for r in checked for law in r["laws"])
    said = {"benchmark": "wild", "models": len(checked), "recipes": len(reports)}
    print(json.dumps({**said, "violated": broken, "triaged": len(CAUSES)}))


if __name__ == "__main__":
    main()
