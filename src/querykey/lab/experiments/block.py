"""The transformer block of document 000: its code beside its formula, and what its output means.

The text gives a formula over columns, X being d x C, and code over rows, and says that they are the
same. Here both run, with every choice of weights transposed in the formula.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from querykey import ag
from querykey.lab.claim import Claim
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.listings import transformer_block
from querykey.lab.measurement import Grid, Measurement, exact

SAMPLES, CONTEXT, FEATURES = 5, 4, 3  # of the text's figure
HIDDEN = 8
PRINTED = (1.6528977, -0.50304305, -1.54629904, -1.18000691, 0.74528666)  # [:, 3, 0] of the figure
WEIGHTS = ("Wq", "Wk", "Wv", "Wh", "Wo")
Array = np.ndarray

CLAIMS = (
    Claim(
        "A1",
        "the code computes the formula as written: of its weights, {value} have to be transposed",
        (),
        of="weights to transpose in the formula",
        right="The code's scores are X^T Wk Wq^T X, so Wk and Wq enter the formula without its "
        "transposes; of the 32 choices no other agrees, and Wv, Wh and Wo stand right.",
    ),
    Claim(
        "A1",
        "the code's softmax makes every column of the C x C matrix sum to {value}",
        1,
        of="sum of a column of softmaxKQ",
    ),
    Claim(
        "A1",
        "relu(Wh^T X + bh), with X of d x C and bh in R^h, is {value} numbers as NumPy computes it",
        (HIDDEN, CONTEXT),
        of="what Wh^T X + bh gives on NumPy",
        right="A vector is added to every row, and one of h numbers is meant for every column: "
        "bh 1^T, or bh[:, None]. Where h is C, NumPy adds the wrong way without a word.",
    ),
    Claim(
        "A2", "the output has the input's shape, {value}", (SAMPLES, CONTEXT, FEATURES),
        of="shape of the output",
    ),
    Claim(
        "A2",
        "the second and third column of Wv being zero, {value} columns of the output are zero",
        2,
        of="columns of zeros in the output",
    ),
    Claim(
        "A3",
        "the last row is an accumulated summary of all rows before: of the 16 pairs of an output "
        "row and an input row, {value} depend on each other",
        10,
        of="pairs of rows that depend on each other",
        right="No mask hides anything, so every row, the first too, summarises all four.",
    ),
    Claim(
        "A3",
        "[:, 3, 0] is, counted from 1, row and element {value}",
        (3, 3),
        of="row and element that [:, 3, 0] picks",
        right="It is the first element of the fourth row.",
    ),
    Claim(
        "A3",
        "the text takes the binary cross-entropy of attention's outputs: of the five that it "
        "prints, {value} are between 0 and 1",
        5,
        of="printed outputs between 0 and 1",
        right="The output of attention is any number, and the logarithm of a negative one is none: "
        "it is a logit, which takes a sigmoid first.",
    ),
)  # fmt: skip


def formula(X: Array, weights: dict[str, Array], biases: tuple[Array, Array]) -> Array:
    """Return the text's formula for one sequence X, which is d x C."""
    scores = X.T @ weights["Wk"].T @ weights["Wq"] @ X
    powers = np.exp(scores - scores.max(0))
    attention = weights["Wv"].T @ X @ (powers / powers.sum(0))
    hidden = np.maximum(weights["Wh"].T @ attention + biases[0][:, None], 0)
    return weights["Wo"].T @ hidden + biases[1][:, None]


def transposes_that_agree(seed: int) -> list[tuple[str, ...]]:
    """Return every set of weights which, transposed in the formula, make it what the code does."""
    d, rng = 5, np.random.default_rng(seed)
    block = transformer_block(d, d, seed)  # as wide inside, so that every transpose fits
    X = rng.standard_normal((SAMPLES, 7, d)) / d
    out = block(X).data
    parts = (block.att.Wq, block.att.Wk, block.att.Wv, block.mlp.Wh, block.mlp.wo)
    weights = {name: part.data for name, part in zip(WEIGHTS, parts, strict=True)}
    biases = (block.mlp.bh.data, block.mlp.bo.data)
    agreeing = []
    for turned in (names for size in range(6) for names in combinations(WEIGHTS, size)):
        used = {name: w.T if name in turned else w for name, w in weights.items()}
        if all(
            np.allclose(formula(x.T, used, biases).T, row, atol=1e-9)
            for x, row in zip(X, out, strict=True)
        ):
            agreeing.append(turned)
    return agreeing


def dependence(seed: int) -> Array:
    """Return the size of the derivative of every output row by every input row."""
    att = transformer_block(FEATURES, HIDDEN, seed).att
    rng = np.random.default_rng(seed)
    table = np.zeros((CONTEXT, CONTEXT))
    for row in range(CONTEXT):
        X = ag.Tensor(rng.standard_normal((SAMPLES, CONTEXT, FEATURES)), label="X")
        ag.sum(att(X)[:, row, 0]).backward()
        assert X.grad is not None
        table[row] = np.abs(X.grad).mean((0, 2))
    return table


def figure_of_the_text(seed: int) -> tuple[Array, float]:
    """Return the output of attention with one column of Wv left, and what a column sums to."""
    att = transformer_block(FEATURES, HIDDEN, seed).att
    att.Wv.data[:, 1:] = 0
    X = np.random.default_rng(seed).standard_normal((SAMPLES, CONTEXT, FEATURES))
    powers = np.exp((X @ att.Wk.data) @ (X @ att.Wq.data).swapaxes(1, 2))
    columns = (powers / powers.sum(1, keepdims=True)).sum(1)
    return att(ag.Tensor(X)).data, float(columns.flat[np.abs(columns - 1).argmax()])


def hidden_layer_as_written() -> tuple[int, ...] | str:
    """Return the shape of the text's Wh^T X + bh for one sequence, or that NumPy refuses it."""
    mlp = transformer_block(FEATURES, HIDDEN, 0).mlp
    try:
        return (mlp.Wh.data.T @ np.ones((FEATURES, CONTEXT)) + mlp.bh.data).shape
    except ValueError:
        return "an error"


def measure(depth: Depth) -> Measurement:
    """Run the text's code, and its formula with every choice of transposes."""
    seeds = [*depth.seeds(quick=2, full=20)]
    agreeing = {tuple(transposes_that_agree(seed)) for seed in seeds}
    turned = {names for choice in agreeing for names in choice}
    tables = [dependence(seed) for seed in seeds]
    out, column = figure_of_the_text(0)
    place = np.array([[(i, j) for j in range(1, FEATURES + 1)] for i in range(1, CONTEXT + 1)])
    names = [f"row {i}" for i in range(1, CONTEXT + 1)]
    return Measurement(
        {
            "weights to transpose in the formula": exact(
                tuple(sorted(turned.pop())) if len(turned) == 1 else f"{len(turned)} choices"
            ),
            "sum of a column of softmaxKQ": exact(round(column, 12)),
            "what Wh^T X + bh gives on NumPy": exact(hidden_layer_as_written()),
            "printed outputs between 0 and 1": exact(sum(0 <= number <= 1 for number in PRINTED)),
            "shape of the output": exact(out.shape),
            "columns of zeros in the output": exact(int((out == 0).all((0, 1)).sum())),
            "pairs of rows that depend on each other": exact(
                min(int((table > 0).sum()) for table in tables)
            ),
            "row and element that [:, 3, 0] picks": exact(
                tuple(int(i) for i in np.stack([place] * SAMPLES)[:, 3, 0][0])
            ),
        },
        {
            "dependence": Grid(
                "Derivative of each output row (down) by each input row (across)",
                np.mean(tables, 0).tolist(), names, names,
            )
        },
    )  # fmt: skip


EXPERIMENT = Experiment(
    "block", "Does the first document's code compute its formula, and what is its output?",
    CLAIMS, measure,
)  # fmt: skip
