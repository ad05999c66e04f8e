"""The linear autoencoder and principal components (document 004, 1 b).

The data's covariance has known, distinct eigenvalues. An autoencoder without biases is trained to
its optimum by L-BFGS in float64; the text's derivatives are compared with automatic ones.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from querykey.lab.claim import Claim, Equal, Near
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.measurement import Chart, Measured, Measurement, exact, sampled
from querykey.models import Autoencoder, AutoencoderConfig

POINTS, INPUTS, LATENT = 60, 8, 3  # n, m, k
Array = np.ndarray

CLAIMS = (
    Claim("E3", "the optimum's loss is {value} times the sum of the discarded eigenvalues", 1,
          of="loss over the discarded eigenvalues", within=Near(1e-6)),
    Claim("E3", "the optimum spans the principal subspace: its angle to W2 is {value}, in radians",
          0, of="angle to the principal subspace", within=Equal(1e-3)),
    Claim("E3", "principal components are the unique optimum up to signs: columns of W2 differ "
          "from them by {value}", 0, of="distance of W2's columns from the components",
          within=Equal(1e-3),
          right="Only the subspace is unique: W2 G and G^-1 W1 have the same loss for every "
          "invertible G."),
    Claim("E3", "the derivative by W2 is {value} times 2 (I - W2 W1) X X^T W1^T", 1,
          of="factor of the derivative by W2", within=Near(1e-6),
          right="The sign is missing, as I - W2 W1 falls when W2 W1 grows, and so is 1/n."),
    Claim("E3", "the derivative by W1 is {value} times 2 W2^T (I - W2 W1) X X^T", 1,
          of="factor of the derivative by W1", within=Near(1e-6),
          right="The same: it is -1/n times that."),
    Claim("E3", "the line before, 2 H X X^T W2, has the shape of W1, {value}", (INPUTS, LATENT),
          of="shape of W1", right="W2^T has to stand on the left: 2 H X X^T W2 is m x k."),
    Claim("E3", "U_k satisfies the conditions (which the text doubts): the derivatives there are "
          "{value}", 0, of="derivatives at U_k", within=Equal(1e-10),
          right="It does: U_k^T (I - U_k U_k^T) = 0."),
    Claim("E3", "the conditions hold at the minimum alone: they do for {value} choice of k "
          "eigenvectors", 1, of="choices of eigenvectors that satisfy the conditions",
          right="Any k eigenvectors satisfy them; all choices but the largest are saddle points."),
    Claim("E3", "I - U_k U_k^T is diag(0, I): it differs from that by {value}", 0,
          of="I - U_k U_k^T less diag(0, I)", within=Equal(1e-10),
          right="Only in the basis of the eigenvectors, as U^T (I - U_k U_k^T) U."),
    Claim("E3", "in the eigenvectors' basis I - U_k U_k^T is diag(0, I): it differs from that by "
          "{value}", 0,
          of="U^T (I - U_k U_k^T) U less diag(0, I)", within=Equal(1e-10)),
    Claim("E3", "X = sum of sigma_i u_i u_i^T, which has the shape {value} of X", (INPUTS, INPUTS),
          of="shape of X",
          right="That is the form of a symmetric matrix: X = sqrt(n) sum of sigma_i u_i v_i^T, and "
          "X X^T / n = sum of sigma_i^2 u_i u_i^T."),
    Claim("E3", "X has the values sigma_i: its singular values are {value} times these", 1,
          of="singular values of X over sigma", within=Near(1e-6),
          right="X is not square and has no eigenvalues; its singular values are sqrt(n) sigma_i, "
          "as sigma_i^2 belong to X X^T / n."),
    Claim("E3", "the last line, diag(0, I) U Sigma^2 (I; 0) = 0: it is {value} away from that", 0,
          of="size of diag(0, I) U Sigma^2 (I; 0)", within=Equal(1e-10),
          right="With U in between it is not 0: the diagonal form holds in the basis of the "
          "eigenvectors, where U has to go, too."),
    Claim("E3", "sigma_1 > ... > sigma_k > 0 identifies the components: with sigma_k+1 = sigma_k, "
          "{value} choice of k eigenvectors has the least loss", 1,
          of="choices with the least loss, sigma_k+1 = sigma_k",
          right="It takes sigma_k > sigma_k+1 as well, as problem 2 of the same text assumes."),
    Claim("E3", "X is centred without loss of generality: trained on X plus a constant vector, the "
          "angle to the principal subspace is {value}", 0,
          of="angle to the principal subspace, X not centred", within=Equal(1e-3),
          right="Without biases the model learns the mean as a direction of its own; data have to "
          "be centred first."),
)  # fmt: skip


def data(seed: int) -> Tensor:
    """Return centred points X (m, n) whose covariance has distinct eigenvalues in random axes."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((INPUTS, POINTS)) * np.linspace(3, 0.5, INPUTS)[:, None]
    turned = np.linalg.qr(rng.standard_normal((INPUTS, INPUTS)))[0] @ X
    return torch.tensor(turned - turned.mean(1, keepdims=True))


def eigenvectors(X: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues of X X^T / n, the largest first, and the eigenvectors as columns."""
    values, vectors = torch.linalg.eigh(X @ X.T / X.shape[1])
    return values.flip(0), vectors.flip(1)


def loss(W1: Tensor, W2: Tensor, X: Tensor) -> Tensor:
    """Return |X - W2 W1 X|^2 / n."""
    return (X - W2 @ W1 @ X).square().sum() / X.shape[1]


def trained(X: Tensor, seed: int, steps: int) -> tuple[Autoencoder, list[float]]:
    """Return a linear autoencoder at its optimum, and its losses on the way there."""
    torch.manual_seed(seed)
    model = Autoencoder(AutoencoderConfig(INPUTS, LATENT, bias=False)).double()
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=20, tolerance_grad=1e-14, tolerance_change=0,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> float:
        optimizer.zero_grad()
        value = INPUTS * model.loss(X.T)  # which is a mean over entries
        value.backward()
        return value.item()

    return model, [*(optimizer.step(closure) for _ in range(steps)), closure()]


def angle(basis: Tensor, top: Tensor) -> float:
    """Return the largest angle between two subspaces, from orthonormal columns of each."""
    outside = torch.linalg.matrix_norm(basis - top @ top.T @ basis, 2)
    return float(torch.asin(outside.clamp(max=1)))


def at_the_optimum(seed: int, steps: int) -> tuple[dict[str, float], list[float]]:
    """Return the loss, the subspace and the columns of a trained autoencoder."""
    X = data(seed)
    values, vectors = eigenvectors(X)
    model, losses = trained(X, seed, steps)
    W2 = next(model.decoder.parameters()).detach()
    basis = torch.linalg.qr(W2).Q
    top = vectors[:, :LATENT]
    overlap = (top.T @ (W2 / W2.norm(dim=0))).abs()
    found = {
        "loss over the discarded eigenvalues": losses[-1] / float(values[LATENT:].sum()),
        "angle to the principal subspace": angle(basis, top),
        "distance of W2's columns from the components": float((1 - overlap.amax(0)).max()),
    }
    return found, losses


def derivatives(W1: Tensor, W2: Tensor, X: Tensor) -> tuple[Tensor, Tensor]:
    """Return the derivatives of the loss by W1 and W2, by automatic differentiation."""
    W1, W2 = W1.clone().requires_grad_(), W2.clone().requires_grad_()
    by_W1, by_W2 = torch.autograd.grad(loss(W1, W2, X), (W1, W2))
    return by_W1, by_W2


def factors(seed: int) -> tuple[float, float]:
    """Return n times what the text's expressions are to be multiplied with, for W2 and W1."""
    X, generator = data(seed), torch.Generator().manual_seed(seed)
    W1 = torch.randn(LATENT, INPUTS, dtype=X.dtype, generator=generator)
    W2 = torch.randn(INPUTS, LATENT, dtype=X.dtype, generator=generator)
    by_W1, by_W2 = derivatives(W1, W2, X)
    rest = torch.eye(INPUTS, dtype=X.dtype) - W2 @ W1
    text_W2, text_W1 = 2 * rest @ X @ X.T @ W1.T, 2 * W2.T @ rest @ X @ X.T
    assert torch.allclose(by_W2 * text_W2[0, 0], text_W2 * by_W2[0, 0])  # in proportion
    assert torch.allclose(by_W1 * text_W1[0, 0], text_W1 * by_W1[0, 0])
    return float(by_W2[0, 0] / text_W2[0, 0]), float(by_W1[0, 0] / text_W1[0, 0])


def at_eigenvectors() -> dict[str, Measured]:
    """Return the derivatives at eigenvectors, and the form of the projection."""
    X = data(0)
    _, U = eigenvectors(X)
    stationary = 0
    for chosen in choices_of_eigenvectors():
        part = U[:, list(chosen)]
        stationary += max(float(g.abs().max()) for g in derivatives(part.T, part, X)) < 1e-10
    top = U[:, :LATENT]
    rest = torch.eye(INPUTS, dtype=U.dtype) - top @ top.T
    block = torch.diag(torch.tensor([0.0] * LATENT + [1.0] * (INPUTS - LATENT), dtype=U.dtype))
    return {
        "derivatives at U_k": exact(max(float(g.abs().max()) for g in derivatives(top.T, top, X))),
        "choices of eigenvectors that satisfy the conditions": exact(stationary),
        "I - U_k U_k^T less diag(0, I)": exact(float((rest - block).abs().max())),
        "U^T (I - U_k U_k^T) U less diag(0, I)": exact(float((U.T @ rest @ U - block).abs().max())),
        "shape of W1": exact((LATENT, INPUTS)),
        "shape of X": exact(tuple(X.shape)),
    }


def beyond_the_text(steps: int) -> dict[str, Measured]:
    """Return what becomes of the text's assumptions: sizes, equal eigenvalues, data off centre."""
    X = data(0)
    values, U = eigenvectors(X)
    block = torch.diag(torch.tensor([0.0] * LATENT + [1.0] * (INPUTS - LATENT), dtype=U.dtype))
    printed = block @ U @ torch.diag(values) @ torch.eye(INPUTS, LATENT, dtype=U.dtype)
    tied = values.sqrt().clone()
    tied[LATENT] = tied[LATENT - 1]
    white = torch.linalg.qr(X.T).Q.T * POINTS**0.5  # whose covariance is I
    Y = U @ torch.diag(tied) @ white
    losses = torch.stack(
        [loss(part.T, part, Y) for part in (U[:, list(c)] for c in choices_of_eigenvectors())]
    )
    off_centre, _ = trained(X + 5.0, 0, steps)
    W2 = next(off_centre.decoder.parameters()).detach()
    return {
        "singular values of X over sigma": exact(
            float((torch.linalg.svdvals(X) / values.sqrt()).mean())
        ),
        "size of diag(0, I) U Sigma^2 (I; 0)": exact(float(printed.abs().max())),
        "choices with the least loss, sigma_k+1 = sigma_k": exact(
            int((losses < losses.min() * (1 + 1e-9)).sum())
        ),
        "angle to the principal subspace, X not centred": exact(
            angle(torch.linalg.qr(W2).Q, U[:, :LATENT])
        ),
    }


def choices_of_eigenvectors() -> list[tuple[int, ...]]:
    """Return every choice of k of the m eigenvectors."""
    return [*combinations(range(INPUTS), LATENT)]


def measure(depth: Depth) -> Measurement:
    """Train to the optimum from several starts, and compare derivatives."""
    steps = depth.pick(quick=15, full=40)
    runs = [at_the_optimum(seed, steps) for seed in depth.seeds(quick=3, full=20)]
    by_W2, by_W1 = zip(*(factors(seed) for seed in range(3)), strict=True)
    values = {name: sampled(found[name] for found, _ in runs) for name in runs[0][0]}
    values["factor of the derivative by W2"] = sampled(by_W2)
    values["factor of the derivative by W1"] = sampled(by_W1)
    lines = {}
    for seed, (_, losses) in enumerate(runs[:3]):
        floor = float(eigenvectors(data(seed))[0][LATENT:].sum())
        above = [(step, value / floor - 1) for step, value in enumerate(losses)]
        lines[f"seed {seed}"] = [(20 * n, math.log10(max(x, 1e-16))) for n, x in above[:13]]
    return Measurement(
        values | at_eigenvectors() | beyond_the_text(steps),
        {
            "loss": Chart("Loss of a linear autoencoder above the discarded eigenvalues",
                          "steps of L-BFGS", "log10 of the relative excess", lines)
        },
    )  # fmt: skip


EXPERIMENT = Experiment(
    "pca", "What does a linear autoencoder learn, and are the text's derivatives right?",
    CLAIMS, measure,
)  # fmt: skip
