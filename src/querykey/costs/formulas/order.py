"""The order of growth of a formula, such as O(batch seq^2) or O(log seq + width)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from querykey.costs.counting.depths import ceil_log2
from querykey.costs.inputs import CostError

NEGATIVE = "a leading coefficient is negative, so only the O is known"


@dataclass(frozen=True)
class Order:
    """The terms that no other term outgrows, when every size grows on its own."""

    terms: tuple[Any, ...]
    given: tuple[tuple[str, str], ...] = ()
    names: tuple[str, ...] = ()
    inexact: str = ""  # why the order is no Theta, empty where it is one

    @property
    def theta(self) -> str:
        """Return the order as Theta, which holds where no leading coefficient is negative."""
        if self.inexact:
            raise CostError(self.inexact)
        return f"Theta({self._sum()}){self._where()}"

    def __str__(self) -> str:
        return f"O({self._sum()}){self._where()}"

    __repr__ = __str__

    def _sum(self) -> str:
        return " + ".join(_written(term, self.names) for term in self.terms) or "1"

    def _where(self) -> str:
        relations = ", ".join(_relation(name, relation) for name, relation in self.given)
        return f" where {relations}" if relations else ""


def order_of(
    value: sympy.Expr, names: Sequence[str], given: Mapping[str, Any] | None = None
) -> Order:
    """Return the order of a formula, after the relations between sizes are put in."""
    names = list(names)
    value = sympy.sympify(value)
    inexact = ""
    for name, relation in (given or {}).items():
        bound = str(relation).strip().removeprefix("<=")
        if bound != str(relation).strip():
            value = _bounded(value, name, bound.strip(), names)
            inexact = f"`{name}` has a bound and no value, so only the O is known"
        else:
            value = _relate(value, name, relation, names)
        if name not in names:
            names.append(name)
    relations = tuple((name, str(relation).strip()) for name, relation in (given or {}).items())
    if value == 0:
        return Order((sympy.S.Zero,), relations, tuple(names), inexact)
    powers: dict[tuple[Any, ...], Any] = {}
    logs: set[frozenset[str]] = set()
    for term in _terms(value):
        if isinstance(term.as_coeff_Mul()[1], ceil_log2):
            logs.add(frozenset(n for n in names if _power(term.as_coeff_Mul()[1].args[0], n) > 0))
            continue
        key = tuple(_power(term, name) for name in names)
        powers[key] = powers.get(key, 0) + term.as_coeff_Mul()[0]
    leading = [p for p in powers if not any(_outgrows(q, p) for q in powers if q != p)]
    leading.sort(key=lambda p: _rank(p))
    logarithms = _logarithms(logs, leading, names)
    if logarithms and leading == [(0,) * len(names)]:
        leading = []  # a logarithm outgrows a constant
    symbols = [sympy.Symbol(name) for name in names]
    terms = tuple(sympy.prod([s**e for s, e in zip(symbols, p, strict=True)]) for p in leading)
    if not all(powers[p] > 0 for p in leading):
        inexact = inexact or NEGATIVE
    return Order((*terms, *logarithms), relations, tuple(names), inexact)


def _terms(value: Any) -> list[Any]:
    """Return the terms of a sum; those of a maximum, which grows as the sum of its formulas does.

    A difference that stands in one formula of a maximum does not make another one smaller.
    """
    if not isinstance(value, sympy.Max):
        return list(sympy.Add.make_args(sympy.expand(value)))
    return list(dict.fromkeys(term for formula in value.args for term in _terms(formula)))


def _logarithms(
    logs: set[frozenset[str]], leading: Sequence[tuple[Any, ...]], names: Sequence[str]
) -> list[Any]:
    """Return the logarithms that neither a power of a size nor another logarithm outgrows."""
    grown = {n for p in leading for n, power in zip(names, p, strict=True) if power > 0}
    left = {sizes - grown for sizes in logs} - {frozenset()}
    kept = [sizes for sizes in left if not any(sizes < other for other in left)]
    kept.sort(key=lambda sizes: [n not in sizes for n in names])
    return [sympy.log(sympy.prod([sympy.Symbol(n) for n in sizes])) for sizes in kept]


def _bounded(value: sympy.Expr, name: str, bound: str, names: list[str]) -> sympy.Expr:
    """Return the formula with the bound of a size in its place, where it grows with that size."""
    right = _known(name, f"<= {bound}", _parsed(name, bound, names), names)
    if not _increases(value):
        raise CostError(f"`{name} <= {bound}`: the formula has terms that fall as sizes grow")
    return sympy.expand(value.subs(sympy.Symbol(name), right))


def _increases(value: Any) -> bool:
    """Return whether a formula falls nowhere as its sizes grow."""
    if value.is_number:
        return bool(value >= 0)
    if isinstance(value, sympy.Pow):
        return bool(value.exp.is_number and value.exp >= 0) and _increases(value.base)
    monotone = (sympy.Add, sympy.Mul, sympy.Max, sympy.Min, sympy.floor, sympy.ceiling, ceil_log2)
    return value.is_Symbol or (isinstance(value, monotone) and all(map(_increases, value.args)))


def _relate(value: sympy.Expr, name: str, relation: Any, names: list[str]) -> sympy.Expr:
    """Return the formula with a product replaced by `name`, or with `name` replaced by it."""
    right = _known(name, relation, _parsed(name, relation, names), names)
    left = sympy.Symbol(name)
    factors = right.as_powers_dict()
    symbols = right.free_symbols
    if value.has(left) and (len(symbols) < 2 or not symbols <= value.free_symbols):
        return sympy.expand(value.subs(left, right))
    if not symbols or not all(f.is_Symbol for f in factors if not f.is_number):
        raise CostError(f"`{name} = {relation}`: a relation gives a product of sizes, or a number")
    total = sympy.S.Zero
    for term in sympy.Add.make_args(sympy.expand(value)):
        own = term.as_powers_dict()
        times = min(own.get(f, 0) // p for f, p in factors.items() if f.is_Symbol)
        total += term / right**times * left**times if times > 0 else term
    return total


def _known(name: str, relation: Any, right: Any, names: list[str]) -> Any:
    """Return the right side of a relation, whose sizes must be there."""
    for symbol in sorted(right.free_symbols, key=str):
        if symbol.name not in names:
            have = ", ".join(names)
            raise CostError(
                f"`{_relation(name, relation)}`: there is no size `{symbol}` (there are {have})"
            )
    return right


def _relation(name: str, relation: Any) -> str:
    return f"{name} {relation}" if str(relation).startswith("<=") else f"{name} = {relation}"


def _parsed(name: str, relation: Any, names: list[str]) -> Any:
    local = {size: sympy.Symbol(size) for size in names}
    try:
        right = sympy.parse_expr(str(relation), local_dict=local)
    except Exception:  # sympy evaluates it as Python, so anything may be raised
        right = None
    if not isinstance(right, sympy.Expr) or not name.isidentifier():
        raise CostError(
            f"`{name} = {relation}` relates no sizes; write a product of them, as in d = h*k"
        )
    return right


def _power(term: Any, name: str) -> Any:
    """Return the power of a size in a term; a floor or a minimum grows as its arguments do."""
    symbol = sympy.Symbol(name)
    if not term.has(symbol):
        return sympy.S.Zero
    return sum((e * _growth(b, symbol) for b, e in term.as_powers_dict().items()), sympy.S.Zero)


def _growth(base: sympy.Expr, symbol: sympy.Symbol) -> Any:
    if base == symbol:
        return sympy.S.One
    if not base.has(symbol):
        return sympy.S.Zero
    if isinstance(base, sympy.floor | sympy.ceiling):
        return max(_power(t, symbol.name) for t in sympy.Add.make_args(base.args[0].expand()))
    if isinstance(base, sympy.Max | sympy.Add):
        return max(_power(arg, symbol.name) for arg in base.args)
    if isinstance(base, sympy.Min):
        return min(_power(arg, symbol.name) for arg in base.args)
    return sympy.S.One if not isinstance(base, sympy.Mod) else sympy.S.Zero


def _outgrows(bigger: tuple[Any, ...], smaller: tuple[Any, ...]) -> bool:
    return all(a >= b for a, b in zip(bigger, smaller, strict=True))


def _rank(powers: tuple[Any, ...]) -> Any:
    """Return the sort key of a term: few sizes first, then high powers, later sizes first."""
    highest = max(powers, default=0)
    place = max((i for i, p in enumerate(powers) if p == highest), default=0)
    return sum(p != 0 for p in powers), -highest, -place, tuple(-p for p in powers)


def _written(term: sympy.Expr, names: Sequence[str]) -> str:
    if isinstance(term, sympy.log):
        sizes = _written(term.args[0], names)
        return f"log({sizes})" if " " in sizes else f"log {sizes}"
    factors = []
    for name in names:
        power = _power(term, name)
        if power != 0:
            factors.append(name if power == 1 else f"{name}^{power}")
    return " ".join(factors) or ("0" if term == 0 else "1")
