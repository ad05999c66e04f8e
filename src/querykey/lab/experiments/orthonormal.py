"""Weight decay and orthonormal columns in a linear autoencoder (document 004, 2).

The objective is |X - W2 W1 X|^2 / n + lambda (|W1|^2 + |W2|^2). Its optimum has W1 = W2^T. A
direction with variance s^2 is kept with a factor a = w^2, w being the singular value of W2, at the
price s^2 (1 - a)^2 + 2 lambda a; that is least at a = 1 - lambda / s^2, or at 0 if that is below.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from querykey.lab.claim import AtLeast, AtMost, Claim, Equal
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.measurement import Chart, Measured, Measurement, exact, sampled
from querykey.models import Autoencoder, AutoencoderConfig

POINTS, INPUTS, LATENT = 200, 6, 3
SPREADS = (3.0, 2.4, 2.0, 0.6, 0.4, 0.2)  # standard deviations s
SMALL, LARGE = 0.02, 2.0  # lambda

CLAIMS = (
    Claim("E4", "a small lambda (0.02) makes the columns of W2 orthonormal: W2^T W2 - I has no "
          "entry above {value}", 0.01, of="W2^T W2 - I, lambda = 0.02", within=AtMost()),
    Claim("E4", "without lambda nothing does, as every W2 G with G^-1 W1 is as good: W2^T W2 - I "
          "has an entry of {value} or more", 0.05, of="W2^T W2 - I, lambda = 0", within=AtLeast()),
    Claim("E4", "the singular values of W2 are as near to 1 as possible: at lambda = 2 the "
          "smallest is {value}", 1, of="smallest singular value, lambda = 2", within=Equal(0.01),
          right="The penalty also shrinks them, to sqrt(1 - lambda / s^2), and to 0 where lambda "
          "is above s^2; only for lambda far below s^2 are they near 1."),
    Claim("E4", "theory: singular values sqrt(1 - lambda / s^2), off by {value}", 0,
          of="error of sqrt(1 - lambda / s^2)", within=Equal(1e-5)),
    Claim("E4", "nn.MSELoss and SGD with weight_decay = lambda optimise exactly this: singular "
          "values off by {value}", 0, of="error of SGD, MSELoss, weight_decay = lambda",
          within=Equal(1e-4),
          right="SGD adds weight_decay w to the gradient, which belongs to weight_decay |w|^2 / 2, "
          "and MSELoss divides by the m features, too: weight_decay = 2 lambda / m, or 2 lambda "
          "with the sum over features."),
    Claim("E4", "with weight_decay = 2 lambda / m they optimise exactly this: singular values off "
          "by {value}", 0,
          of="error of SGD, MSELoss, weight_decay = 2 lambda / m", within=Equal(1e-4)),
    Claim("E4", "a mean over points of the sum over features, with weight_decay = 2 lambda, "
          "optimises exactly this: singular values off by {value}",
          0, of="error of SGD, sum over features, weight_decay = 2 lambda",
          within=Equal(1e-4)),
    Claim("E4", "training points one at a time, at a constant rate, SGD optimises it exactly: "
          "singular values off by {value}", 0, of="error of SGD, one point at a time",
          within=Equal(1e-4),
          right="It wanders around the optimum, and settles as the rate falls: only the mean of "
          "its steps is the objective's gradient."),
    Claim("E4", "the mean of the gradients of all points, taken one at a time, is the objective's "
          "over m: off by {value}", 0, of="error of the mean gradient, one point at a time",
          within=Equal(1e-12)),
    Claim("E4", "two linear layers are all that is needed: nn.Linear as it is has {value} "
          "parameters that the objective has not", 0, of="biases of two nn.Linear",
          right="nn.Linear has biases, which weight decay would shrink as well; the objective has "
          "none: bias=False."),
)  # fmt: skip


def data(seed: int) -> Tensor:
    """Return centred points (n, m) whose covariance has exactly the eigenvalues s^2."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(POINTS, INPUTS, dtype=torch.float64, generator=generator)
    white = torch.linalg.qr(points - points.mean(0)).Q * POINTS**0.5
    axes = torch.linalg.qr(torch.randn(INPUTS, INPUTS, dtype=torch.float64, generator=generator)).Q
    return white * torch.tensor(SPREADS, dtype=torch.float64) @ axes.T


def theory(decay: float) -> Tensor:
    """Return the singular values of W2 at the optimum, the largest first."""
    kept = [max(0.0, 1 - decay / s**2) ** 0.5 for s in SPREADS[:LATENT]]
    return torch.tensor(kept, dtype=torch.float64)


def linear(seed: int) -> Autoencoder:
    """Return a linear autoencoder without biases."""
    torch.manual_seed(seed)
    return Autoencoder(AutoencoderConfig(INPUTS, LATENT, bias=False)).double()


def decoder(model: Autoencoder) -> Tensor:
    """Return W2, (m, k)."""
    return next(model.decoder.parameters()).detach()


def optimum(X: Tensor, decay: float, seed: int) -> Tensor:
    """Return W2 at the optimum of the objective as it is written, by L-BFGS."""
    model = linear(seed)
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=1500, tolerance_grad=1e-9, tolerance_change=0,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> float:
        optimizer.zero_grad()
        squares = torch.stack([p.square().sum() for p in model.parameters()]).sum()
        value = (X - model(X)).square().sum() / POINTS + decay * squares
        value.backward()
        return value.item()

    optimizer.step(closure)
    return decoder(model)


def by_sgd(X: Tensor, weight_decay: float, mean: bool, steps: int, seed: int) -> Tensor:
    """Return W2 after gradient descent by torch's SGD, with a mean or a sum over features."""
    model, mse = linear(seed), nn.MSELoss()
    features = 1 if mean else INPUTS
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.2 / features, momentum=0.9, weight_decay=weight_decay
    )
    for _ in range(steps):
        optimizer.zero_grad()
        (features * mse(model(X), X)).backward()
        optimizer.step()
    return decoder(model)


def point_by_point(X: Tensor, rate: float, epochs: int, seed: int) -> Tensor:
    """Return W2 after SGD that takes the points one by one, in a new order every epoch."""
    model, mse = linear(seed), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, weight_decay=2 * LARGE / INPUTS)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for point in X[torch.randperm(len(X), generator=generator)]:
            optimizer.zero_grad()
            mse(model(point), point).backward()
            optimizer.step()
    return decoder(model)


def mean_gradient_error(X: Tensor, seed: int) -> float:
    """Return how far the mean of the points' gradients is from that of the objective over m."""
    model, mse = linear(seed), nn.MSELoss()
    W1, W2 = (next(part.parameters()) for part in (model.encoder, model.decoder))
    decayed = LARGE * (W1.square().sum() + W2.square().sum())
    objective = (X - X @ W1.T @ W2.T).square().sum() / POINTS + decayed
    whole = torch.autograd.grad(objective / INPUTS, [W1, W2])
    for point in X:  # backward() adds up
        mse(model(point), point).backward()
    added = 2 * LARGE / INPUTS  # times w: what SGD's weight decay adds
    means = [w.grad / POINTS + added * w.detach() for w in (W1, W2) if w.grad is not None]
    return max(float((a - b).abs().max()) for a, b in zip(means, whole, strict=True))


def off(W2: Tensor, decay: float) -> float:
    """Return how far the singular values are from those of theory."""
    return float((torch.linalg.svdvals(W2) - theory(decay)).abs().max())


def not_orthonormal(W2: Tensor) -> float:
    """Return the largest entry of W2^T W2 - I."""
    return float((W2.T @ W2 - torch.eye(LATENT, dtype=W2.dtype)).abs().max())


def one_seed(seed: int, steps: int) -> dict[str, float]:
    """Return everything measured with one start."""
    X = data(seed)
    small, large, none = (optimum(X, decay, seed) for decay in (SMALL, LARGE, 0.0))
    return {
        "W2^T W2 - I, lambda = 0.02": not_orthonormal(small),
        "W2^T W2 - I, lambda = 0": not_orthonormal(none),
        "smallest singular value, lambda = 2": float(torch.linalg.svdvals(large).min()),
        "error of sqrt(1 - lambda / s^2)": max(off(small, SMALL), off(large, LARGE)),
        "error of SGD, MSELoss, weight_decay = lambda": off(
            by_sgd(X, LARGE, True, steps, seed), LARGE
        ),
        "error of SGD, MSELoss, weight_decay = 2 lambda / m": off(
            by_sgd(X, 2 * LARGE / INPUTS, True, steps, seed), LARGE
        ),
        "error of SGD, sum over features, weight_decay = 2 lambda": off(
            by_sgd(X, 2 * LARGE, False, steps, seed), LARGE
        ),
        "error of SGD, one point at a time": off(point_by_point(X, 0.02, 10, seed), LARGE),
        "error of the mean gradient, one point at a time": mean_gradient_error(X, seed),
    }


def measure(depth: Depth) -> Measurement:
    """Find optima by L-BFGS and by SGD, and the singular values over lambda."""
    steps = depth.pick(quick=400, full=1000)
    runs = [one_seed(seed, steps) for seed in depth.seeds(quick=3, full=8)]
    values: dict[str, Measured] = {n: sampled(run[n] for run in runs) for n in runs[0]}
    biased = Autoencoder(AutoencoderConfig(INPUTS, LATENT))
    values["biases of two nn.Linear"] = exact(
        sum(p.numel() for name, p in biased.named_parameters() if name.endswith("bias"))
    )
    decays = depth.pick(quick=(0.5, 2.0, 5.0), full=(0.1, 0.5, 1.0, 2.0, 3.0, 4.5, 6.0, 8.0))
    found = {d: torch.linalg.svdvals(optimum(data(0), d, 0)) for d in decays}
    lines = {}
    for index in range(LATENT):
        fine = [d / 10 for d in range(1, int(10 * decays[-1]) + 1)]
        lines[f"s = {SPREADS[index]}"] = [(d, float(theory(d)[index])) for d in fine]
    for index in range(LATENT):
        points = [(d, float(s[index])) for d, s in found.items()]
        lines[f"s = {SPREADS[index]}, measured"] = points
    rings = tuple(name for name in lines if name.endswith("measured"))
    return Measurement(
        values,
        {
            "shrinkage": Chart("Singular values of W2 (rings) and sqrt(1 - lambda / s^2)", "lambda",
                               "singular value", lines, rings=rings)
        },
    )  # fmt: skip


EXPERIMENT = Experiment(
    "orthonormal", "Does weight decay make the columns of the decoder orthonormal?",
    CLAIMS, measure,
)  # fmt: skip
