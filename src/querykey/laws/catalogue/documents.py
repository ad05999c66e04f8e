"""Packed rows: documents that share a row answer as they do in rows of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch.overrides import TorchFunctionMode

from querykey.laws.catalogue import sweeps
from querykey.laws.law import Law, RefusalError
from querykey.laws.run import Inputs, Run, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Trial, conduct, every_cell

TABLES = re.compile(
    r"^(doc(ument)?s?(_?(ids?|idx|index|indices|mask))?|pack(ed|ing)?_ids?|sample_ids|"
    r"seq(uence)?_(idx|ids?)|sequence_index|segments?|segment_ids?|seg_ids?)$"
)
UNSURE = re.compile(r"^seg")  # as in BERT, a segment may be a kind of token that hides nothing
BORDERS = re.compile(r"^cu_?(seq_?lens?|doc_?lens?)(_[qk])?$")
LONGEST = re.compile(r"^max_?(seq_?lens?|length|doc_?len)(_[qk])?$")
STARTS = ((0, 5), (0, 9), (0, 3, 7))  # where documents begin, row by row
COMPARES = re.compile(r"_*(eq|ne|not_equal|lt|le|gt|ge|less|greater|sub|rsub|subtract)(_equal)?_*")


@dataclass(frozen=True)
class Packing:
    """How a model is told which documents share a row."""

    name: str
    kind: str  # "table": an id per token; "borders": where they begin; "positions": they restart
    positions: bool = False  # positions that restart are passed beside it

    @property
    def sure(self) -> bool:
        """Return whether nothing else can be meant by the argument."""
        return self.kind != "positions" and not UNSURE.match(self.name)


class ComparedPairs(TorchFunctionMode):
    """Notes whether ids of tokens are compared with each other, each with each, in this context."""

    def __init__(self, ids: torch.Tensor):
        super().__init__()
        self.ids, self.seen = ids, False

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if len(args) == 2 and COMPARES.fullmatch(getattr(func, "__name__", "")):
            sides = [a for a in args if isinstance(a, torch.Tensor) and self._is_table(a)]
            axes = {s.dim() - s.shape[::-1].index(self.ids.shape[-1]) for s in sides}
            self.seen = self.seen or len(axes) == 2
        return func(*args, **(kwargs or {}))

    def _is_table(self, value: torch.Tensor) -> bool:
        value = value.squeeze()
        return value.shape == self.ids.shape and torch.equal(value.cpu().double(), self.ids)


def _are_compared(runner: Runner, setting: Setting, way: Packing) -> bool:
    """Return whether ids of documents are compared pair by pair: no kind of token is.

    Positions may well be, by a bias that grows with the distance.
    """
    if way.kind != "table":
        return False
    row = arguments(runner, way, list(STARTS[0]), setting.length, setting.batch)
    watch = ComparedPairs(row[way.name].double())
    with watch, torch.no_grad():
        runner.attempt({**runner.inputs(setting), **row}, setting)
    return watch.seen


def ways(runner: Runner) -> list[Packing]:
    """Return the ways to tell a model of documents, the surest first."""
    names = [n for n in runner.copies.parameters if n not in runner.inputs()]
    tables = sorted((n for n in names if TABLES.match(n)), key=lambda n: bool(UNSURE.match(n)))
    packings = [Packing(n, "table") for n in tables]
    packings += [Packing(n, "borders") for n in names if BORDERS.match(n)][:1]
    positions = runner.facts.arguments.positions
    if positions and not packings:
        packings.append(Packing(positions.name, "positions", True))
    return packings


def takes_documents(runner: Runner) -> str:
    """Return why the law does not apply to a model that cannot be told of documents."""
    if not runner.signature.sequential or runner.signature.others() or not runner.signature.axis:
        return "it does not answer for every token of one sequence"
    return "" if ways(runner) else "nothing tells it of documents in a row"


def arguments(runner: Runner, way: Packing, starts: list[int], length: int, rows: int) -> Inputs:
    """Return the arguments that say where the documents of rows begin."""
    ends = [*starts[1:], length]
    sizes = torch.tensor([stop - start for start, stop in zip(starts, ends, strict=True)])
    passed: Inputs = {}
    if way.kind == "table":
        ids = torch.arange(1, len(starts) + 1).repeat_interleave(sizes)
        passed[way.name] = ids.expand(rows, -1).contiguous()
    if way.kind == "borders":
        borders = torch.tensor([*starts, length], dtype=torch.int32)
        for name in runner.copies.parameters:
            if BORDERS.match(name):
                passed[name] = borders
            elif LONGEST.match(name):
                passed[name] = int(sizes.max())
    positions = runner.facts.arguments.positions
    if way.positions and positions:
        # transformers looks for positions that restart where no cache is to be filled.
        passed |= dict.fromkeys(runner.facts.arguments.flags, False)
        count = torch.cat([torch.arange(int(size)) for size in sizes])
        passed[positions.name] = positions.value(count.expand(rows, -1).contiguous())
    return passed


def packed(runner: Runner, setting: Setting) -> Iterator[Trial]:
    """Compare every document of packed rows with the same document in a row of its own."""
    refused = ""
    for way in ways(runner):
        tried = [way]
        if runner.facts.arguments.positions and not way.positions:
            tried.append(Packing(way.name, way.kind, True))
        for option in tried:
            try:
                trials = list(_trials(runner, setting, option))
                worst = max(conduct(runner, trial).deviation for trial in trials)
            except Exception as error:
                refused = refused or str(error)
                continue
            if worst <= runner.facts.threshold:
                yield from trials
                return
            if option is tried[-1] and (option.sure or _are_compared(runner, setting, option)):
                yield from trials
                return
    if refused:
        raise RefusalError(f"the model raised an error: {refused.splitlines()[0][:160]}")
    raise RefusalError("restarting positions, or segments, do not keep documents apart in it")


def _trials(runner: Runner, setting: Setting, way: Packing) -> Iterator[Trial]:
    """Yield a trial for every document but those that nothing can precede or follow."""
    signature, inputs, length = runner.signature, runner.inputs(setting), setting.length
    together = way.kind == "table"
    whole = inputs
    if together:
        rows = [arguments(runner, way, list(s), length, 1) for s in STARTS]
        whole = inputs | {
            n: torch.cat([row[n] for row in rows]) if isinstance(v, torch.Tensor) else v
            for n, v in rows[0].items()
        }
    for row, starts in enumerate(STARTS):
        if not together:
            extra = arguments(runner, way, list(starts), length, 1)
            whole = signature.take_rows(inputs, [row]) | extra
        for start, stop in pairwise((*starts, length)):
            alone = signature.cut(signature.take_rows(inputs, [row]), start, stop)
            if way.kind == "borders":
                alone |= arguments(runner, way, [0], stop - start, 1)
            yield Trial(
                Run(alone, setting),
                Run(whole, setting),
                (
                    every_cell([0], range(stop - start)),
                    every_cell([row if together else 0], range(start, stop)),
                ),
                None,
                f"the document at positions {start} to {stop - 1} shared its row with others, as "
                f"`{way.name}` says",
            )


LAWS = (
    Law(
        "documents",
        says="Documents that are packed into one row answer as they do in rows of their own.",
        why="Otherwise training on packed rows mixes texts that have no part in each other.",
        how="Rows of two and three documents are marked by ids, by borders or by positions that "
        "restart, whichever the model takes; every document is then run alone.",
        trials=packed,
        applies=takes_documents,
        sweep=sweeps.once,
    ),
)
