"""Sums of products in Einstein's notation, with their derivative."""

from __future__ import annotations

import string
from typing import Any

import numpy as np

from querykey.ag.primitives import primitive
from querykey.ag.tensor import Tensor, raw, record, shrink


@primitive
def einsum(subscripts: str, *operands: Any) -> Tensor:
    """Multiply the operands and sum over the letters that are not in the result.

    Every operand's gradient is an einsum too: of the result's gradient and the other operands.
    """
    values = [np.asarray(raw(x)) for x in operands]
    terms, result = spelled_out(subscripts, [v.ndim for v in values])

    def pull(i: int) -> Any:
        others = [(t, v) for j, (t, v) in enumerate(zip(terms, values, strict=True)) if j != i]
        return lambda g: operand_gradient(g, result, terms[i], values[i].shape, others)

    y = np.einsum(f"{','.join(terms)}->{result}", *values, optimize=True)
    return record("einsum", y, *[(x, pull(i)) for i, x in enumerate(operands)])


def spelled_out(subscripts: str, ranks: list[int]) -> tuple[list[str], str]:
    """Return the letters of every operand and of the result, with `...` turned into letters."""
    left, arrow, result = subscripts.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ValueError(f"{subscripts!r} speaks of {len(terms)} operands, {len(ranks)} were given")
    free = [c for c in string.ascii_letters if c not in subscripts]
    widths = [r - len(t) + 3 for t, r in zip(terms, ranks, strict=True) if "..." in t]
    dots = "".join(free[: max(widths, default=0)])
    if not arrow:
        letters = sorted(c for c in set(left) - set(".,") if left.count(c) == 1)
        result = ("..." if widths else "") + "".join(letters)
    spelled = []
    for term, rank in zip(terms, ranks, strict=True):
        width = rank - len(term) + 3
        spelled.append(term.replace("...", dots[len(dots) - width :] if width > 0 else ""))
        if len(spelled[-1]) != rank:
            raise ValueError(f"{term!r} in {subscripts!r} does not name {rank} axes")
    return spelled, result.replace("...", dots)


def operand_gradient(
    g: np.ndarray,
    result: str,
    term: str,
    shape: tuple[int, ...],
    others: list[tuple[str, np.ndarray]],
) -> np.ndarray:
    """Return the gradient of the operand spelled `term`."""
    letters = "".join(dict.fromkeys(term))
    inputs = ",".join([result, *[t for t, _ in others]])
    known = "".join(c for c in letters if c in inputs)
    part = np.einsum(f"{inputs}->{known}", g, *[v for _, v in others], optimize=True)
    part = part.reshape([part.shape[known.index(c)] if c in known else 1 for c in letters])
    if letters == term:
        return part
    full = np.zeros(shape, part.dtype)
    diagonal = np.einsum(f"{term}->{letters}", full)  # a view
    diagonal[...] = shrink(part, diagonal.shape)
    return full
