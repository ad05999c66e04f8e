"""The laws in the order in which they are tried. To add one: a file with a Law, a line here."""

from __future__ import annotations

from querykey.laws.catalogue import (
    accumulation,
    backends,
    batch,
    cache,
    cache_moves,
    causality,
    determinism,
    documents,
    equivariance,
    generation,
    gradients,
    losses,
    masked_row,
    padding,
    paths,
    precision,
    purity,
    reload,
    saturation,
    tying,
    vocabulary,
)
from querykey.laws.law import Law

LAWS: tuple[Law, ...] = (
    *purity.LAWS,
    *determinism.LAWS,
    *causality.LAWS,
    *padding.LAWS,
    *batch.LAWS,
    *cache.LAWS,
    *cache_moves.LAWS,
    *generation.LAWS,
    *backends.LAWS,
    *masked_row.LAWS,
    *equivariance.LAWS,
    *documents.LAWS,
    *vocabulary.LAWS,
    *precision.LAWS,
    *gradients.LAWS,
    *tying.LAWS,
    *losses.LAWS,
    *accumulation.LAWS,
    *paths.LAWS,
    *reload.LAWS,
    *saturation.LAWS,
)
