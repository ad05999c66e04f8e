"""What attention IS: small frozen specs and their equations, on any array library."""

from querykey.attention.arrays import Array, library, moved
from querykey.attention.decoding.growing import Recur, Ways, row_numbers
from querykey.attention.features import (
    EluPlusOne,
    FeatureMap,
    Polynomial,
    PowerSeries,
    Quadratic,
    RandomFeatures,
    Taylor,
)
from querykey.attention.grids import attend_channels
from querykey.attention.heads import join_heads, repeat_heads, split_heads
from querykey.attention.inputs import Call, check_inputs
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
from querykey.attention.mechanisms import Argmax, Kernel, Mechanism, Similarity, Softmax
from querykey.attention.positions import ALiBi, Bias, Buckets, Rotary, sinusoids
from querykey.attention.reference import weighted_sum, weights
from querykey.attention.algebra import And, At, Or, places, split
from querykey.attention.decoding.extend import Growing, Recurrent, Sliding, State, empty_state, follow
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
    "Recur",
    "Recurrent",
    "Rotary",
    "Similarity",
    "Sliding",
    "Softmax",
    "State",
    "Strided",
    "Taylor",
    "Ways",
    "Window",
    "attend_channels",
    "check_inputs",
    "empty_state",
    "follow",
    "join_heads",
    "library",
    "moved",
    "orthogonal_rows",
    "places",
    "real_keys",
    "repeat_heads",
    "row_numbers",
    "sinusoids",
    "split",
    "split_heads",
    "weighted_sum",
    "weights",
]
