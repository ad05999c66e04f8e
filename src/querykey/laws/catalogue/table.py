"""The laws, in the order in which they are tried. To add one: a file with a Law, a line here."""

from __future__ import annotations

from querykey.laws.catalogue import (
    backends as agreement,
)
from querykey.laws.catalogue import (
    batch,
    causality,
    padding,
    precision,
    saturation,
)
from querykey.laws.catalogue import (
    cache as caching,
)
from querykey.laws.catalogue import (
    generation as generating,
)
from querykey.laws.catalogue import (
    gradients as learning,
)
from querykey.laws.catalogue import (
    purity as basics,
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
