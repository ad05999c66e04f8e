"""The counts of both pseudocodes are those that are written down here once more, array by array."""

from querykey.lab.pseudocode import C, D, M, N, counts

SIZES = {N: 7, D: 2, M: 3, C: 5}
INPUTS_AND_OUTPUTS = 7 * 2 + 7 * 2 + 7 * 3 + 7 * 3  # queries, keys, values, outputs
BY_HAND = {
    "softmax's first loop": 7 * 7 * 2,  # a product of D features for every pair
    "softmax's second loop": 2 * 7 * 7,  # every score is scaled and divided
    "softmax's third loop": 7 * 7 * 3,
    "softmax's memory": INPUTS_AND_OUTPUTS + 2 * 7 * 7,  # scores and weights
    "fused softmax's memory": INPUTS_AND_OUTPUTS + 7,  # a denominator for every query
    "kernel's sums": 7 * 5 * 3 + 7 * 5,  # features times values, and the features
    "kernel's outputs": 7 * 5 * 3 + 7 * 5,
    "kernel's memory": INPUTS_AND_OUTPUTS + 5 * 3 + 5,  # both sums
    "kernel's memory, features kept": INPUTS_AND_OUTPUTS + 5 * 3 + 5 + 7 * 5 + 7 * 5,
}


def test_every_count_is_that_of_the_arrays_and_loops():
    assert {name: int(formula.subs(SIZES)) for name, formula in counts().items()} == BY_HAND
