"""What attention IS: small frozen specs and their equations, on any array library."""

from querykey.attention.algebra import And, At, Or, places, split
from querykey.attention.arrays import Array, library, moved
from querykey.attention.biases import ALiBi, Bias, Buckets
from querykey.attention.decoding.chunk import Chunk, blank
from querykey.attention.decoding.empty_state import empty_state, ready
from querykey.attention.decoding.growing import Growing
from querykey.attention.decoding.recurrent import Recurrent, recur
from querykey.attention.decoding.sliding import Sliding
from querykey.attention.decoding.state import Reading, State, row_numbers
from querykey.attention.features import (
    EluPlusOne,
    FeatureMap,
    Polynomial,
    PowerSeries,
    Quadratic,
    RandomFeatures,
    Taylor,
)
from querykey.attention.grids import (
    attend_channels,
    attend_grid,
    attend_windows,
    pooled,
    strided,
)
from querykey.attention.heads import join_heads, repeat_heads, split_heads
from querykey.attention.inputs import Call, check_inputs, check_takes_decay
from querykey.attention.masks import (
    FULL,
    ArrayMask,
    Blocks,
    Causal,
    Dense,
    Dilated,
    Documents,
    Full,
    Global,
    Mask,
    Padding,
    Prefix,
    Strided,
    Window,
    real_keys,
)
from querykey.attention.mechanisms import (
    Argmax,
    Kernel,
    Mechanism,
    Similarity,
    Softmax,
    argmax,
    shares,
    softmax,
    warn_of_overflow,
)
from querykey.attention.positions import Rotary, sinusoids
from querykey.attention.reference import attend_checked, weighted_sum, weights
from querykey.attention.tables import orthogonal_rows

__all__ = [
    "FULL",
    "ALiBi",
    "And",
    "Argmax",
    "Array",
    "ArrayMask",
    "At",
    "Bias",
    "Blocks",
    "Buckets",
    "Call",
    "Causal",
    "Chunk",
    "Dense",
    "Dilated",
    "Documents",
    "EluPlusOne",
    "FeatureMap",
    "Full",
    "Global",
    "Growing",
    "Kernel",
    "Mask",
    "Mechanism",
    "Or",
    "Padding",
    "Polynomial",
    "PowerSeries",
    "Prefix",
    "Quadratic",
    "RandomFeatures",
    "Reading",
    "Recurrent",
    "Rotary",
    "Similarity",
    "Sliding",
    "Softmax",
    "State",
    "Strided",
    "Taylor",
    "Window",
    "argmax",
    "attend_channels",
    "attend_checked",
    "attend_grid",
    "attend_windows",
    "blank",
    "check_inputs",
    "check_takes_decay",
    "empty_state",
    "join_heads",
    "library",
    "moved",
    "orthogonal_rows",
    "places",
    "pooled",
    "ready",
    "real_keys",
    "recur",
    "repeat_heads",
    "row_numbers",
    "shares",
    "sinusoids",
    "softmax",
    "split",
    "split_heads",
    "strided",
    "warn_of_overflow",
    "weighted_sum",
    "weights",
]
