"""Multiplications and numbers kept of document 004's two pseudocodes, as polynomials.

For softmax attention and for kernel attention over N tokens, with keys of size D, values of size M
and C features.
"""

from __future__ import annotations

from typing import Any

import sympy

from querykey.attention import Quadratic

N, D, M, C = sympy.symbols("N D M C", positive=True)


def counts() -> dict[str, Any]:
    """Return multiplications and numbers kept of the two pseudocodes, line by line."""
    return {
        "softmax's first loop": N**2 * D,
        "softmax's second loop": 2 * N**2,
        "softmax's third loop": N**2 * M,
        "softmax's memory": N * (2 * D + 2 * M) + 2 * N**2,
        "fused softmax's memory": N * (2 * D + 2 * M + 1),
        "kernel's sums": N * C * M + N * C,
        "kernel's outputs": N * C * M + N * C,
        "kernel's memory": N * (2 * D + 2 * M) + C * M + C,
        "kernel's memory, features kept": N * (2 * D + 2 * M) + C * M + C + 2 * N * C,
    }


def at_width(formula: Any, width: int) -> Any:
    """Return a formula in N alone, for D = M = width and the features of the quadratic kernel."""
    return formula.subs({D: width, M: width, C: Quadratic().width(width)})


def equal_from(first: Any, second: Any, width: int) -> list[float]:
    """Return the N above 0 where two formulas are equal."""
    roots = sympy.solve(sympy.expand(at_width(first - second, width)), N)
    return [float(root) for root in roots if root.is_positive]
