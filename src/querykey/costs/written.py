"""Formulas as a person writes them: `2 batch seq d (4 d + seq)`, factored where that is shorter."""

from __future__ import annotations

from typing import Any

import sympy

MANY = 60  # terms, from which on nothing is factored
LEFT_OUT = " + ..."


def written(value: Any, width: int | None = None) -> str:
    """Return a value as text, its last terms left out where it is wider than `width`."""
    if isinstance(value, str):
        return str(value)
    value = sympy.sympify(value)
    if value.is_Integer:
        return f"{int(value):,}"
    text = min((_plain(form) for form in _forms(value)), key=len)
    if width is None or len(text) <= width:
        return text
    kept = ""
    for term in _terms(value):
        longer = f"{kept} {'-' if term.startswith('-') else '+'} {term.lstrip('-')}"
        longer = longer.strip() if kept else term
        if len(longer) + len(LEFT_OUT) > width:
            break
        kept = longer
    return kept + LEFT_OUT if kept else "..."[: max(width, 0)]


def _forms(value: sympy.Expr) -> list[Any]:
    """Return the formula as it is, and with what its terms share taken out."""
    symbols: Any = value.free_symbols
    plain = bool(symbols) and value.is_polynomial(*symbols)
    if not plain or len(sympy.Add.make_args(value)) > MANY:
        return [value]
    return [value, sympy.factor_terms(value), sympy.factor(value)]


def _terms(value: sympy.Expr) -> list[str]:
    if isinstance(value, sympy.Max):
        return [_plain(value)]
    return [_plain(term) for term in value.as_ordered_terms()]


def _plain(value: Any) -> str:
    return str(value).replace("**", "^").replace("*", " ")
