"""The parallel depth of a pass: how long its longest chain of dependent steps is.

Every elementwise function takes one step. A sum of n terms takes ceil(log2 n) steps as a tree, or n
steps where sums over its sizes are serial. Views and copies take none. A depth is the largest of
some sums such as `2 ceil_log2(n) + 5`; a sum that another exceeds term by term is left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

import sympy
import torch

from querykey.costs.counting.operations import PRODUCTS, Operation, Shape, count, first
from querykey.costs.inputs import leaves
from querykey.costs.private import storage_key

Chain = frozenset[
    tuple[Any, int]
]  # from a number of terms, summed as a tree, to how often; 1: steps
START: frozenset[Chain] = frozenset({frozenset()})


class ceil_log2(sympy.Function):  # noqa: N801 (as it is written in a formula)
    """The number of steps in which a tree of sums adds up n terms."""

    @classmethod
    def eval(cls, n: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the number where n is one."""
        if n.is_Integer and n >= 1:
            return sympy.Integer((int(n) - 1).bit_length())
        return None


class Depths:
    """The depth of every piece of memory during one pass, and the largest of them all."""

    def __init__(self) -> None:
        self.longest = START
        self.unknown: dict[str, None] = {}
        self._depths: dict[int, frozenset[Chain]] = {}

    def follow(self, operation: Operation, args: Any, out: Any) -> None:
        """Give the results of an operation the depth of its operands and its own steps."""
        before = START
        known = set()
        for tensor in leaves(args):
            if isinstance(tensor, torch.Tensor):
                known.add(storage_key(tensor))
                before = _largest(before | self._depths.get(storage_key(tensor), START))
        steps = steps_of(operation)
        if steps is None:
            self.unknown[operation.name] = None
            steps = Counter()
        after = frozenset(_plus(chain, steps) for chain in before)
        for tensor in leaves(out):
            if isinstance(tensor, torch.Tensor):
                key = storage_key(tensor)
                old = self._depths.get(key, START) if key in known else START
                self._depths[key] = _largest(old | after)
        self.longest = _largest(self.longest | after)


def formula(
    chains: Collection[Chain], plain: Callable[[Any], Any], serial: Collection[str] = ()
) -> Any:
    """Return a depth as the largest of some formulas, sums over the `serial` sizes in a chain."""
    formulas = {}
    for chain in chains:
        total = sympy.S.Zero
        for terms, times in chain:
            total += times * (1 if terms == 1 else _sum(plain(terms), serial))
        formulas[sympy.expand(total)] = None
    kept = [f for f in formulas if not any(_exceeds(other, f) for other in formulas if other != f)]
    return kept[0] if len(kept) == 1 else sympy.Max(*kept, evaluate=False)


def steps_of(op: Operation) -> Counter[Any] | None:
    """Return the steps of an operation by number of terms, None where they are not known."""
    if op.name in MADE or not op.outs:
        return Counter()
    if op.name in SUMS:
        return SUMS[op.name](op)
    if op.name in PRODUCTS:
        return None
    if op.kind in ("free", "move"):
        return Counter()
    if op.kind == "pointwise" or op.kind == "formula":
        return Counter({1: 1}) if op.kind == "pointwise" else None
    if op.kind == "reduction":
        terms = sympy.cancel(sympy.sympify(count(first(op))) / count(op.outs[0]))
        return Counter({terms: 1})
    return None


def _tree(terms: Any, trees: int, steps: int) -> Counter[Any]:
    total: Counter[Any] = Counter({1: steps})
    total[sympy.sympify(terms)] += trees
    return total


def _axis(op: Operation) -> Any:
    return first(op)[op.args[1]]


def _norm(op: Operation) -> Counter[Any]:
    terms = math.prod(op.args[1])
    affine = sum(isinstance(arg, Shape) for arg in op.args[2:4])
    # mean; subtract, square, mean; add epsilon, root, divide
    return _tree(terms, 2, 7 + affine)


def _mean(op: Operation) -> Counter[Any]:
    terms = sympy.cancel(sympy.sympify(count(first(op))) / count(op.outs[0]))
    return _tree(terms, 1, 1)


def _variance(op: Operation) -> Counter[Any]:
    terms = sympy.cancel(sympy.sympify(count(first(op))) / count(op.outs[0]))
    return _tree(terms, 2, 4)


SUMS: Mapping[str, Callable[[Operation], Counter[Any]]] = {
    "aten.mm": lambda op: _tree(op.args[0][-1], 1, 1),
    "aten.bmm": lambda op: _tree(op.args[0][-1], 1, 1),
    "aten.mv": lambda op: _tree(op.args[0][-1], 1, 1),
    "aten.dot": lambda op: _tree(op.args[0][0], 1, 1),
    "aten.addmm": lambda op: _tree(op.args[1][-1], 1, 2),
    "aten.baddbmm": lambda op: _tree(op.args[1][-1], 1, 2),
    # max, subtract, exp, sum, divide; with a logarithm in place of the division, and a subtraction
    "aten._softmax": lambda op: _tree(_axis(op), 2, 3),
    "aten._safe_softmax": lambda op: _tree(_axis(op), 2, 3),
    "aten._log_softmax": lambda op: _tree(_axis(op), 2, 4),
    "aten.logsumexp": lambda op: _tree(sympy.cancel(count(first(op)) / count(op.outs[0])), 2, 4),
    "aten.native_layer_norm": _norm,
    "aten.mean": _mean,
    "aten.var": _variance,
    "aten.cumsum": lambda op: _tree(_axis(op), 1, 0),
    "aten.convolution": lambda op: _tree(
        count(Shape(op.args[1][1:])), 1, 1 + isinstance(op.args[2], Shape)
    ),
}
# What is copied or made, and takes no step of arithmetic, though torch tags it pointwise.
MADE = {"aten.clone", "aten._to_copy", "aten.copy", "aten.copy_", "aten.fill", "aten.fill_"}


def _sum(terms: Any, serial: Collection[str]) -> Any:
    """Return the steps of one sum: a tree, or a chain over the serial sizes with a tree each."""
    factors = sympy.sympify(terms).as_powers_dict() if serial else {}
    chain = sympy.prod([f**p for f, p in factors.items() if str(f) in serial])
    if chain == 1:
        return ceil_log2(terms)
    rest = sympy.cancel(terms / chain)
    tree: Any = ceil_log2(rest) if rest != 1 else 0
    return chain + tree


def _plus(chain: Chain, steps: Counter[Any]) -> Chain:
    total = Counter(dict(chain))
    total.update(steps)
    return frozenset((terms, times) for terms, times in total.items() if times and terms != 0)


def _largest(chains: frozenset[Chain]) -> frozenset[Chain]:
    """Return the chains without those that another one exceeds in every term."""
    if len(chains) < 2:
        return chains
    counters = [(chain, dict(chain)) for chain in chains]

    def within(small: dict[Any, int], large: dict[Any, int]) -> bool:
        return all(large.get(terms, 0) >= times for terms, times in small.items())

    return frozenset(
        chain
        for chain, own in counters
        if not any(within(own, other) for key, other in counters if key != chain)
    )


def _exceeds(bigger: Any, smaller: Any) -> bool:
    gap = sympy.expand(bigger - smaller)
    return all(term.as_coeff_Mul()[0] >= 0 for term in sympy.Add.make_args(gap))
