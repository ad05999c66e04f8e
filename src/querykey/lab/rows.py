"""The rows of the ledger: every statement of the five documents that an experiment measures."""

from __future__ import annotations

from dataclasses import dataclass

from querykey.words import check_fields

DOCUMENTS = {
    "000": "a transformer block on a small autograd library (CS 577, homework 5)",
    "001": "scaled dot-product, several heads, masks, layer norm (EECS 182, final review)",
    "002": "heads with U < J, parallel time, two dimensions (TTIC 31230, problems)",
    "003": "transformers (chapter 12, problems with answers)",
    "004": "autoencoders, attention variants, debugging (EECS 182, homework 7)",
}


@dataclass(frozen=True)
class Statement:
    """Where a statement stands, what it is about, and the experiment that measures it."""

    document: str
    place: str
    about: str
    experiment: str

    def __post_init__(self):
        check_fields(self)


ROWS = {
    "A1": Statement("000", "1, listing", "the code computes the formula", "block"),
    "A2": Statement("000", "1 b", "zero columns of Wv give zero columns of the output", "block"),
    "A3": Statement("000", "1 b", "which output is [:, 3, 0], and what it depends on", "block"),
    "A4": Statement("000", "1 c", "FLOPs of a forward pass, line by line", "flops"),
    "A5": Statement("000", "1, listing", "raw exp of unscaled scores", "overflow"),
    "B1": Statement("001", "1 a", "mean and variance of the scores", "saturation"),
    "B2": Statement("001", "1 a", "softmax's Jacobian vanishes as d grows", "saturation"),
    "B3": Statement("001", "2 a", "receptive field of argmax attention", "receptive-field"),
    "B4": Statement("001", "2 b", "which mask goes where", "masks"),
    "B5": Statement("001", "2 c, d", "complexity line by line, and the bottleneck", "complexity"),
    "B6": Statement("001", "3 a", "what layer norm and batch norm depend on", "norms"),
    "B7": Statement("001", "3 b", "the length of a normalised vector", "norms"),
    "C1": Statement("002", "1", "six equations of a layer with U < J", "heads"),
    "C2": Statement("002", "1 a, b", "parallel time of the softmax and of the layer", "span"),
    "C3": Statement("002", "2", "the six equations in two dimensions", "grid"),
    "D1": Statement("003", "12.1", "counts of weights, biases and attention weights", "counts"),
    "D2": Statement("003", "12.3", "equivariance, equation by equation", "equivariance"),
    "D3": Statement("003", "12.4", "the 25 derivatives of a saturated softmax", "saturation"),
    "D4": Statement("003", "12.5", "why D/H features per head", "heads"),
    "D5": Statement("003", "12.6", "what pretraining tasks teach", "pretraining"),
    "D6": Statement("003", "12.7", "one more token under a causal mask", "incremental"),
    "D7": Statement("003", "12.8", "ways around the quadratic cost of images", "patches"),
    "D8": Statement("003", "12.9", "attention between patches and between channels", "davit"),
    "D9": Statement("003", "12.10", "g(k).g(q) in place of exp(k.q)", "kernel"),
    "D10": Statement("003", "12.2", "why the output has the input's size", "sizes"),
    "E1": Statement("004", "1 a", "latent size, reconstruction and linear probe", "autoencoder"),
    "E2": Statement("004", "1 a", "vanilla, denoising and masked autoencoders", "autoencoder"),
    "E3": Statement("004", "1 b", "linear autoencoders and principal components", "pca"),
    "E4": Statement("004", "2", "weight decay and orthonormal columns", "orthonormal"),
    "E5": Statement("004", "3", "mean and variance of q.k", "saturation"),
    "E6": Statement("004", "4", "argmax attention and its gradients", "argmax"),
    "E7": Statement("004", "5 a", "when the denominator is never zero", "kernel"),
    "E8": Statement(
        "004", "5 b, d", "the quadratic kernel's features and equations 8 to 11", "kernel"
    ),
    "E9": Statement("004", "5 c, d", "time and memory of softmax and kernel", "crossover"),
    "E10": Statement("004", "6 a", "56 layers train worse than 20", "depth"),
    "E11": Statement("004", "6 b", "gradient accumulation and norms", "accumulation"),
    "E12": Statement("004", "6 c", "training without zero_grad", "zero-grad"),
}
