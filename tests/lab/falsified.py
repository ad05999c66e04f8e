"""A wrong number for every row: exponents and counts one could believe, beside the right ones.

Every entry names a measured value, the right number and a wrong one. The claims about that value
are judged with each: the right one is confirmed, the wrong one corrected.
"""

FALSIFIED = {
    "A1": ("weights to transpose in the formula", ("Wk", "Wq"), ("Wv",)),
    "A2": ("columns of zeros in the output", 2, 1),
    "A3": ("pairs of rows that depend on each other", 16, 10),
    "A4": ("multiply-adds over n C d^2", 3, 4),
    "A5": ("share that overflows, d = 16, C = 32, float32", 1, 0.5),
    "B1": ("exponent of Var[s] in d", 1, 2),
    "B2": ("largest norm at the largest d", 1, 0.08),
    "B3": ("positions seen, 2 heads, all apart", 81, 16),
    "B4": ("masks of a decoder, padding left", ("causal", "key padding"), ("key padding",)),
    "B5": ("powers of n_t, n_s, d_model in line_14", (1, 1, 0), (1, 1, 1)),
    "B6": ("batch norm, evaluation", ("i",), ("i", "ii", "iii")),
    "B7": ("|y - beta 1| / (gamma sqrt(d)), gamma = 1.7", 1, 0.5),
    "C1": ("size of h_out", 12, 6),
    "C2": ("layer, U and I below J", "O(log T + log J)", "O(log T + J)"),
    "C3": ("error against one dimension", 0, 0.1),
    "D1": ("biases of queries, keys and values", "3*D", "3*N"),
    "D2": ("error of the conclusion", 0, 0.5),
    "D3": ("largest change of an output when one z moves by 1", 0, 0.1),
    "D4": ("power of H in the map products of one head", -1, -2),
    "D6": ("new products", 10, 19),
    "D8": ("FLOPs between channels", 268435456, 134217728),
    "D9": ("power of N by sums over keys", 1, 2),
    "D10": ("weights to add, 3 heads of 5 values", 180, 144),
    "E3": ("choices of eigenvectors that satisfy the conditions", 56, 1),
    "E4": ("smallest singular value, lambda = 2", 0.7071, 1),
    "E5": ("exponent of Var[s] in d", 1, 2),
    "E6": ("output", (1, 4, 3), (0, -1, 4)),
    "E7": ("similarities that are 0 at q = -k", ("Quadratic", "Polynomial(4)"), ("EluPlusOne",)),
    "E8": ("entries of phi, D = 5", 21, 31),
    "E9": ("N over D^2 where times are equal, causal, D = 64", 1.06, 0.5),
    "E11": ("divisions that agree, batch norm", 0, 5),
    "E12": ("largest rate * curvature without growth, as printed", 4, 2),
}

# More of them, for parts of a row that the row's entry above is not about.
PARTS = (
    ("B5", "lines that rearrange keys and values", (7, 9), (6, 7)),
    ("B5", "powers of n_t, n_s, d_model in the entries of line_7", (0, 1, 1), (1, 0, 1)),
    ("B6", "layer norm, training", ("i", "iii"), ("i",)),
    ("C1", "terms of a score", 2, 12),
    ("C1", "numbers of heads with I below J", 3, 4),
    ("D2", "K P^T Q P", "no product: its sizes do not fit", "N x N"),
    ("E3", "singular values of X over sigma", 60**0.5, 1),
    ("E3", "choices with the least loss, sigma_k+1 = sigma_k", 2, 1),
    ("E4", "error of the mean gradient, one point at a time", 0, 0.1),
    ("E8", "positions in an average of (8)", 7, 6),
    ("E8", "size of what a kernel takes", 5, 4),
    ("E8", "sizes M that (7) can add", 2, 6),
    ("E8", "what the kernel pseudocode's first line gives", "an error", "C x M"),
    ("E9", "power of N in the bytes kept: softmax, attend", 1, 2),
    ("E9", "kernel over softmax on an H200, D = 64, N = 65536", 1, 0.1),
    ("E11", "divisions that run, 4 by 4 pixels", 5, 6),
    ("E11", "batches that count, of 10", 8, 10),
    ("E12", "momentum that gives the same parameters", 1, 0.9),
    ("E12", "power of t in the variance, as printed", 1, 2),
    ("E12", "laws that are broken, as printed", ("training.zero-grad",), ()),
)
