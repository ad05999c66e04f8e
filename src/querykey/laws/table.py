"""The laws, in the order in which they are tried. To add one: a file with a Law, a line here."""

from __future__ import annotations

from querykey.laws import (
    agreement,
    basics,
    batch,
    caching,
    causality,
    generating,
    learning,
    padding,
    precision,
    saturation,
)
from querykey.laws.law import Law

LAWS: tuple[Law, ...] = (
    *basics.LAWS,
    *causality.LAWS,
    *padding.LAWS,
    *batch.LAWS,
    *caching.LAWS,
    *generating.LAWS,
    *agreement.LAWS,
    *precision.LAWS,
    *learning.LAWS,
    *saturation.LAWS,
)
