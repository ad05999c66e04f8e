"""The order of growth of a formula, such as O(batch seq^2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from querykey.costs.inputs import CostError


@dataclass(frozen=True)
class Order:
    """The terms that no other term outgrows, when every size grows on its own."""

    terms: tuple[Any, ...]
    given: tuple[tuple[str, str], ...] = ()
    names: tuple[str, ...] = ()
    exact: bool = True  # every leading coefficient is positive, so the order is a Theta too

    @property
    def theta(self) -> str:
        """Return the order as Theta, which holds where no leading coefficient is negative."""
        if not self.exact:
            raise CostError("a leading coefficient is negative, so only the O is known")
        return f"Theta({self._sum()}){self._where()}"

    def __str__(self) -> str:
        return f"O({self._sum()}){self._where()}"

    __repr__ = __str__

    def _sum(self) -> str:
        return " + ".join(_written(term, self.names) for term in self.terms)

    def _where(self) -> str:
        relations = ", ".join(f"{name} = {relation}" for name, relation in self.given)
        return f" where {relations}" if relations else ""


def order_of(
    value: sympy.Expr, names: Sequence[str], given: Mapping[str, Any] | None = None
) -> Order:
    """Return the order of a formula, after the relations between sizes are put in."""
    names = list(names)
    value = sympy.sympify(value)
    for name, relation in (given or {}).items():
        value = _relate(value, name, relation, names)
        if name not in names:
            names.append(name)
    relations = tuple((name, str(relation)) for name, relation in (given or {}).items())
    if value == 0:
        return Order((sympy.S.Zero,), relations, tuple(names))
    powers: dict[tuple[Any, ...], Any] = {}
    for term in sympy.Add.make_args(sympy.expand(value)):
        key = tuple(_power(term, name) for name in names)
        powers[key] = powers.get(key, 0) + term.as_coeff_Mul()[0]
    leading = [p for p in powers if not any(_outgrows(q, p) for q in powers if q != p)]
    leading.sort(key=lambda p: _rank(p))
    symbols = [sympy.Symbol(name) for name in names]
    terms = tuple(sympy.prod([s**e for s, e in zip(symbols, p, strict=True)]) for p in leading)
    return Order(terms, relations, tuple(names), all(powers[p] > 0 for p in leading))


def _relate(value: sympy.Expr, name: str, relation: Any, names: list[str]) -> sympy.Expr:
    """Return the formula with a product replaced by `name`, or with `name` replaced by it."""
    local = {size: sympy.Symbol(size) for size in names}
    right = _parsed(name, relation, local)
    left = sympy.Symbol(name)
    factors = right.as_powers_dict()
    symbols = right.free_symbols
    for symbol in sorted(symbols, key=str):
        if symbol.name not in names:
            raise CostError(
                f"`{name} = {relation}`: there is no size `{symbol}` (there are {', '.join(names)})"
            )
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


def _parsed(name: str, relation: Any, local: dict[str, Any]) -> Any:
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
    factors = []
    for name in names:
        power = _power(term, name)
        if power != 0:
            factors.append(name if power == 1 else f"{name}^{power}")
    return " ".join(factors) or ("0" if term == 0 else "1")
