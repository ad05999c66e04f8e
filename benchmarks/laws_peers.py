"""Which checker of PyTorch models finds which planted faults: ours, and three public ones.

python benchmarks/laws_peers.py                                  # a table, then a line of JSON
python benchmarks/laws_peers.py mask_grid                        # faults whose names hold a word
python benchmarks/laws_peers.py --store rows.jsonl               # resumable, in an order at random
python benchmarks/laws_peers.py --store rows.jsonl --seconds 0 --write docs/dev/laws-peers.md

The faults are those of tests/laws/strangers: each is a model beside the same model without the
fault. A checker finds a fault when a check fails on the model and not on its lawful twin; what
fails on a twin is a false alarm. One that is not installed is left out; the three come by
`pip install --no-deps pytest-torch==1.1.1 torchtest2==0.1.0 neural_net_checklist==1.1.0` (one asks
for torchvision, which it does not import, and which must fit the build of torch or transformers
does not load). Every checker gets the model, the inputs that our own check finds, and the
names of ids and mask. Each of their checks that can be called without writing a loop is called.
"""

import argparse
import contextlib
import importlib
import importlib.metadata
import inspect
import io
import json
import math
import os
import random
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models: a second thread only waits
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from tests.laws.strangers.case import Case
from tests.laws.strangers.scoring import cases, score, styles
from torch import nn

from querykey.laws import Subject
from querykey.laws.run import PLAIN
from querykey.laws.understanding.understand import understand
from querykey.show import print_table

SECONDS = 120  # for one checker on one model
PEERS = {
    "pytest-torch": "pytest_torch",
    "torchtest2": "torchtest2",
    "neural_net_checklist": "neural_net_checklist.torch_diagnostics",
}


@dataclass(frozen=True)
class Shown:
    """A model, how to build it again, and what its user would tell a checker of it."""

    build: Callable[[], nn.Module]
    inputs: dict[str, Any]
    many: torch.Tensor  # 128 rows of the main input
    main: str
    mask: str | None
    words: int  # size of the vocabulary; 0 where inputs are no ids
    scores: bool  # whether it scores every position and looks at no later one
    take: Callable[[Any, Any], torch.Tensor]

    def model(self) -> nn.Module:
        return self.build().eval()

    def call(self, model: nn.Module, **batch: Any) -> torch.Tensor:
        return self.take(model(**batch), batch)


def shown(factory: Callable[[], Any]) -> Shown:
    """Return a model with the inputs that our own check finds."""

    def build() -> nn.Module:
        torch.manual_seed(0)
        built = factory()
        return built[0] if isinstance(built, tuple) else built

    built = factory()
    example = built[1] if isinstance(built, tuple) else None
    runner = understand(Subject(build(), example=example), 0)
    facts, main = runner.facts, runner.signature.main
    inputs = {
        name: value.float() if value.is_floating_point() else value
        for name, value in runner.inputs().items()
        if isinstance(value, torch.Tensor)
    }
    masks = [mask for mask in facts.masks if not (mask.hides or mask.counts)]
    words = main.high if main.kind == "tokens" else 0
    many = runner.inputs(replace(PLAIN, batch=128))[main.name]
    many = many.float() if many.is_floating_point() else many
    mask = masks[0].name if masks else None
    one = Shown(build, inputs, many, main.name, mask, words, False, runner.take)
    if masks and words:  # of the type that it takes
        real = runner.signature.all_real(inputs, masks[0].axis)
        inputs.setdefault(masks[0].name, masks[0].value(real))
    if "use_cache" in inspect.signature(build().forward).parameters:
        inputs["use_cache"] = False  # as pytest-torch does: it compares all that comes out
    if words and facts.causal:
        one = replace(one, scores=one.call(one.model(), **inputs).dim() == 3)
    return one


def pytest_torch(torches: Any, one: Shown) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the checks of `pytest --torch-model`, and those of training that need no loop."""
    model, tolerance = one.model(), {"rtol": 1e-4, "atol": 1e-4}  # its own for whole models

    def loss(output: Any) -> torch.Tensor:
        return one.take(output, one.inputs).pow(2).mean()

    yield "contract", lambda: torches.check_inference_contract(model, one.inputs, **tolerance)
    yield "layout", lambda: torches.assert_layout_invariant(model, one.inputs, **tolerance)
    if one.mask and one.words:
        keys = {"ids_key": one.main, "mask_key": one.mask, **tolerance}
        yield "padding", lambda: torches.assert_padding_invariant(model, one.inputs, **keys)
        real = one.inputs | {one.mask: hidden(one.inputs[one.mask])}
        yield (
            "mask",
            lambda: torches.assert_mask_invariant(model, real, vocab_size=one.words, **keys),
        )
    yield (
        "checkpoint",
        lambda: torches.assert_checkpoint_roundtrip(
            one.model, one.inputs, model=model, **tolerance
        ),
    )
    yield "finite", lambda: torches.assert_gradients_finite(one.build().train(), one.inputs, loss)
    yield (
        "gradients",
        lambda: torches.assert_all_params_receive_grad(one.build().train(), one.inputs, loss),
    )

    def setup() -> Any:
        trained = one.model()  # some know no dropout but their own
        return torches.TrainingSetup(trained, torch.optim.SGD(trained.parameters(), 0.1))

    batch = {name: value[:2].repeat(2, *[1] * (value.dim() - 1)) for name, value in
             one.inputs.items() if name != "use_cache"}  # fmt: skip
    yield (
        "accumulation",
        lambda: torches.assert_accumulation_equivalent(
            setup, batch, loss_fn=lambda m, b: one.call(m, **b).pow(2).mean(), accumulation_steps=2
        ),
    )


def hidden(mask: torch.Tensor) -> torch.Tensor:
    """Return a mask whose second row ends in padding."""
    mask = mask.clone()
    mask[1:2, -4:] = 0
    return mask


def torchtest2(torches: Any, one: Shown) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield each check of its report that failed, as a check that fails."""

    def failing(detail: str) -> Callable[[], None]:
        def fail() -> None:
            raise AssertionError(detail)

        return fail

    report = torches.check_model(one.build(), one.inputs)
    for result in report.results:
        if result.status == torches.Status.FAIL:
            yield result.name, failing(str(result))


def neural_net_checklist(torches: Any, one: Shown) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield its checks of a language model, or of a classifier, that do not train for long."""
    ids = one.many
    targets = ids if one.scores else torch.zeros(len(ids), dtype=torch.long)
    batch = (ids, targets)

    def factory() -> nn.Module:
        return OneInput(one)

    soft, soft_batch = factory, batch
    if one.words:  # its derivatives are those of one-hot vectors
        soft_batch = (nn.functional.one_hot(ids, one.words).float(), targets)

        def soft() -> nn.Module:
            made = OneInput(one)
            first = next(m for m in made.modules() if isinstance(m, nn.Embedding))
            plain = first.forward
            first.forward = lambda x: x @ first.weight if x.is_floating_point() else plain(x)  # type: ignore[method-assign]
            return made

    yield "batch", lambda: torches.assert_forward_batch_independence(factory, batch)
    yield "gradients", lambda: torches.assert_non_zero_gradients(factory(), batch)
    yield "batch gradients", lambda: torches.assert_backward_batch_independence(soft, soft_batch)
    if one.scores:

        def loss(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())

        yield (
            "loss",
            lambda: torches.assert_balanced_classification_cross_entropy_loss_at_init(
                factory(), batch, num_classes=one.words, loss_fn=loss
            ),
        )
        yield "causal", lambda: torches.assert_forward_causal_property(factory, batch)
        yield (
            "causal gradients",
            lambda: torches.assert_backward_causal_property(soft, soft_batch),
        )


class OneInput(nn.Module):
    """A model that takes its main input alone and returns one tensor, as that checker wants it."""

    def __init__(self, one: Shown):
        super().__init__()
        self.inner, self.one = one.build(), one

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one.call(self.inner, **{self.one.main: x})


CALLS = {
    "pytest-torch": pytest_torch,
    "torchtest2": torchtest2,
    "neural_net_checklist": neural_net_checklist,
}


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Silence what is printed and raise a TimeoutError after some time."""

    def late(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def failures(peer: str, one: Shown) -> set[str]:
    """Return which checks of a checker fail on a model; one that cannot run on it says nothing."""
    failed = set()
    with limited(), contextlib.suppress(Exception):
        for name, run in CALLS[peer](importlib.import_module(PEERS[peer]), one):
            try:
                run()
            except AssertionError:
                failed.add(name)
            except TimeoutError:
                raise
            except Exception:
                continue
    return failed


@dataclass
class Row:
    """What one checker made of one fault and of its twin."""

    case: str
    checker: str
    about: str  # the subject of the law that is broken
    found: bool
    accused: bool
    seconds: float


def compared(style: str, case: Case) -> list[Row]:
    """Return what every checker made of a case."""
    name, about = f"{style}:{case.name}", case.laws[0].split(".")[0]
    began = time.process_time()
    ours = score(style, case)
    spent = (time.process_time() - began) / 2
    rows = [Row(name, "querykey", about, ours.caught, ours.accused, spent)]
    pair = [shown(case.faulty), shown(case.lawful)]
    for peer in (name for name in PEERS if installed(name)):
        began = time.process_time()
        faulty, twin = (failures(peer, one) for one in pair)
        spent = (time.process_time() - began) / 2
        rows.append(Row(name, peer, about, bool(faulty - twin), bool(twin), spent))
    return rows


def installed(peer: str) -> bool:
    try:
        importlib.import_module(PEERS[peer])
    except ImportError:
        return False
    return True


def table(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of what each checker found, by subject."""
    checkers = list(dict.fromkeys(row.checker for row in rows))
    subjects = [name for name, _ in Counter(r.about for r in rows).most_common()]
    ours = [row for row in rows if row.checker == checkers[0]]
    lines = []
    for subject in [*subjects, "all"]:
        of = [r for r in ours if subject in (r.about, "all")]
        found = [
            sum(r.found for r in rows if r.checker == c and subject in (r.about, "all"))
            for c in checkers
        ]
        lines.append([subject, str(len(of)), *map(str, found)])
    for what, measure in (
        ("lawful twins accused", lambda mine: sum(r.accused for r in mine)),
        ("seconds of processor a model", lambda mine: round(sum(r.seconds for r in mine)
                                                            / len(mine), 2)),
    ):  # fmt: skip
        values = [measure([r for r in rows if r.checker == c]) for c in checkers]
        lines.append([what, str(len(ours)), *map(str, values)])
    return ["faults in", "how many", *checkers], lines


def page(rows: list[Row]) -> str:
    """Return what was found, as the page docs/dev/laws-peers.md."""
    header, lines = table(rows)
    count = len({row.case for row in rows})
    told = [f"{name} {importlib.metadata.version(name)}" for name in PEERS if installed(name)]
    return "\n".join(
        [
            "# Planted faults, and who finds them",
            "",
            "`python benchmarks/laws_peers.py --write docs/dev/laws-peers.md` tried querykey, "
            f"{', '.join(told)} with torch {torch.__version__} on {count} of the {len(named())} "
            "faults of `tests/laws/strangers`. Each fault is a model beside the same model without "
            "the fault, its lawful twin.",
            "",
            "- **Found**: a check fails on the model and not on its twin. For querykey it must be "
            "one of the laws that the author of the fault named.",
            "- **Accused**: any check fails on the twin, which is a false alarm.",
            "",
            "Every checker gets the model with its own weights, the inputs that our check finds, "
            "and the names of ids and mask. These checks of the others were called:",
            "",
            "- pytest-torch: those of `pytest --torch-model`, that every parameter receives a "
            "gradient, and accumulation;",
            "- torchtest2: `check_model` without a loss (its warnings are not counted);",
            "- neural_net_checklist: those of a language model, or of a classifier, on the main "
            "input alone, without the two that train.",
            "",
            "Checks that want a loop written by hand were not called. With such a loop, "
            "pytest-torch's check of streaming could find faults of caches.",
            "",
            "| " + " | ".join(header) + " |",
            "|" + "---|" * len(header),
            *("| " + " | ".join(line) + " |" for line in lines),
            "",
        ]
    )


def named() -> dict[str, tuple[str, Case]]:
    """Return all cases by name, in an order at random, so that a part stands for the whole."""
    pairs = [(style, case) for style in styles() for case in cases(style)]
    random.Random(0).shuffle(pairs)
    return {f"{style}:{case.name}": (style, case) for style, case in pairs}


def kept(store: Path | None) -> list[Row]:
    """Return the rows of an earlier run."""
    if store is None or not store.exists():
        return []
    return [Row(**json.loads(line)) for line in store.read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only cases whose names contain one of these")
    parser.add_argument("--store", type=Path, help="where rows are kept; a run goes on from there")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no case after this")
    parser.add_argument("--write", type=Path, help="write the page to this file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = kept(options.store)
    done, began = {row.case for row in rows}, time.monotonic()
    for name, (style, case) in named().items():
        if options.words and not any(word in name for word in options.words):
            continue
        if time.monotonic() - began > options.seconds:
            break
        if name not in done:
            new = compared(style, case)
            rows += new
            if options.store:
                with options.store.open("a") as file:
                    file.writelines(json.dumps(asdict(row)) + "\n" for row in new)
            print(f"\r{name[:70]:70}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    header, lines = table(rows)
    print_table(header, lines)
    if options.write:
        options.write.write_text(page(rows))
    print(json.dumps({"benchmark": "laws_peers", **{line[0]: dict(zip(header[1:], line[1:],
                      strict=True)) for line in lines[-3:]}}))  # fmt: skip


if __name__ == "__main__":
    main()
