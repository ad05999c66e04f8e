"""One training step of the course's transformer block: `querykey.ag` against its peers.

    python benchmarks/ag.py [--rounds 15] [--engines ag,torch,jax-jit]

A step is the forward pass, the binary cross-entropy, the backward pass and plain SGD. Every engine
first takes one step from the same weights, and its loss and gradients must agree with torch's in
float64, or nothing is timed. Then the engines take turns, round after round, on one pinned core; a
ratio is the median over rounds of CPU time over torch's in that round (below 1 is faster than torch
eager). Each setting runs in its own process, once with the allocator's defaults and once with
`ag.keep_pages()`, which serves all engines alike. The last line is JSON.

The document's loss reads one token, and `ag` keeps such gradients small: its ratios there say
nothing about a loss over every output, which is why both are measured.
"""

import argparse
import functools
import importlib.util
import json
import os
import subprocess
import sys
import time

ONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
XLA = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "JAX_PLATFORMS": "cpu"}
SHAPES = [(5, 4, 3, 8), (32, 32, 64, 256), (16, 256, 128, 512), (4, 1024, 256, 1024)]
ENGINES = {
    "ag": "numpy",
    "by-hand": "numpy",
    "torch": "torch",
    "jax-jit": "jax",
    "jax-eager": "jax",
    "autograd": "autograd",
    "mygrad": "mygrad",
}
NAMES = ("Wq", "Wk", "Wv", "Wh", "bh", "Wo", "bo")
LR = 0.01


def draw_problem(shape, dtype):
    import numpy as np

    n, C, d, h = shape
    rng = np.random.default_rng(0)
    sizes = {"Wq": (d, d), "Wk": (d, d), "Wv": (d, d), "Wh": (d, h), "bh": h, "Wo": (h, d), "bo": d}
    weights = {k: rng.standard_normal(s) / np.sqrt(np.atleast_1d(s)[0]) for k, s in sizes.items()}
    for k in ("Wq", "Wk"):  # scores of variance 1: no engine is timed on NaN or on denormals
        weights[k] /= d**0.25
    X, y = rng.standard_normal((n, C, d)), rng.integers(0, 2, (n, C, d))
    return {k: w.astype(dtype) for k, w in weights.items()}, X.astype(dtype), y.astype(dtype)


def forward(m, X, Wq, Wk, Wv, Wh, bh, Wo, bo):
    """The course's text, for any library `m` with NumPy's names."""
    E = m.exp((X @ Wk) @ m.moveaxis(X @ Wq, 1, 2))
    mixed = m.moveaxis(m.moveaxis(X, 1, 2) @ (E / m.sum(E, axis=1, keepdims=True)), 1, 2) @ Wv
    return m.relu(mixed @ Wh + bh) @ Wo + bo


def target(out, y, loss):
    """What the loss reads: every output, or one number per sample as in the text."""
    return (out, y) if loss == "dense" else (out[:, 3, 0], y[:, 3, 0])


def make_ag(weights, X, y, loss):
    import querykey.ag as ag

    params = [ag.Tensor(weights[k], label=k) for k in NAMES]
    data, criterion, sgd = (
        ag.Tensor(X, requires_grad=False),
        ag.nn.BinaryCrossEntropyLoss(),
        ag.optim.SGD(params, lr=LR),
    )

    def step():
        sgd.zero_grad()
        value = criterion(*target(forward(ag, data, *params), y, loss))
        value.backward()
        sgd.step()
        return value

    return step, lambda: [p.data for p in params]


def make_by_hand(weights, X, y, loss):
    """What NumPy itself takes: the same step with its derivatives written out, and no graph."""
    import numpy as np

    Wq, Wk, Wv, Wh, bh, Wo, bo = params = [weights[k].copy() for k in NAMES]
    rows, zero = X.reshape(-1, X.shape[-1]), X.dtype.type(0)

    def step():
        K, Q = (rows @ Wk).reshape(X.shape), (rows @ Wq).reshape(X.shape)
        A = np.exp(K @ Q.swapaxes(1, 2))
        A /= A.sum(axis=1, keepdims=True)
        mixed = (A.swapaxes(1, 2) @ X).reshape(rows.shape)
        V = mixed @ Wv
        R = V @ Wh
        R += bh
        np.maximum(R, zero, out=R)
        out = R @ Wo
        out += bo
        z, t = target(out.reshape(X.shape), y, loss)
        e = np.exp(-np.abs(z))
        value = (np.maximum(z, zero) + np.log1p(e) - z * t).mean()

        slope = (np.where(z >= 0, 1, e) / (1 + e) - t) / z.size
        dout = slope
        if loss != "dense":
            dout = np.zeros_like(X)
            dout[:, 3, 0] = slope
        dout = dout.reshape(rows.shape)
        dR = dout @ Wo.T
        dR *= R > 0
        dV = dR @ Wh.T
        dmixed = (dV @ Wv.T).reshape(X.shape)
        dA = X @ dmixed.swapaxes(1, 2)
        dA -= np.einsum("nij,nij->nj", dA, A)[:, None]
        dA *= A
        dK, dQ = dA @ Q, dA.swapaxes(1, 2) @ K
        grads = [
            rows.T @ dQ.reshape(rows.shape),
            rows.T @ dK.reshape(rows.shape),
            mixed.T @ dV,
            V.T @ dR,
            dR.sum(0),
            R.T @ dout,
            dout.sum(0),
        ]
        for p, g in zip(params, grads, strict=True):
            p -= LR * g
        return value

    return step, lambda: params


def make_torch(weights, X, y, loss):
    import torch

    class Names:
        exp, moveaxis, relu = torch.exp, torch.moveaxis, torch.relu

        @staticmethod
        def sum(x, axis, keepdims):
            return torch.sum(x, dim=axis, keepdim=keepdims)

    torch.set_num_threads(1)
    params = [torch.tensor(weights[k], requires_grad=True) for k in NAMES]
    data, labels = torch.tensor(X), torch.tensor(y)
    criterion = torch.nn.functional.binary_cross_entropy_with_logits

    def step():
        for p in params:
            p.grad = None
        value = criterion(*target(forward(Names, data, *params), labels, loss))
        value.backward()
        with torch.no_grad():
            for p in params:
                p.sub_(p.grad, alpha=LR)
        return value

    return step, lambda: [p.detach().numpy() for p in params]


def make_jax(weights, X, y, loss, jit):
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)

    class Names:
        exp, moveaxis, sum, relu = jnp.exp, jnp.moveaxis, jnp.sum, jax.nn.relu

    data, labels = jnp.asarray(X), jnp.asarray(y)

    def cost(params):
        z, t = target(forward(Names, data, *params), labels, loss)
        return jnp.mean(jnp.logaddexp(0, z) - z * t)

    def update(params):
        value, grads = jax.value_and_grad(cost)(params)
        return value, [p - LR * g for p, g in zip(params, grads, strict=True)]

    update = jax.jit(update, donate_argnums=0) if jit else update
    state = [[jnp.array(weights[k]) for k in NAMES]]

    def step():
        value, state[0] = update(state[0])
        return jax.block_until_ready(value)

    return step, lambda: state[0]


def make_autograd(weights, X, y, loss):
    import autograd
    import autograd.numpy as anp

    class Names:
        exp, sum = anp.exp, anp.sum

        @staticmethod
        def moveaxis(x, a, b):
            return anp.swapaxes(x, a, b)

        @staticmethod
        def relu(x):
            return anp.maximum(x, 0)

    def cost(params):
        z, t = target(forward(Names, X, *params), y, loss)
        return anp.mean(anp.logaddexp(0, z) - z * t)

    both, params = autograd.value_and_grad(cost), [weights[k].copy() for k in NAMES]

    def step():
        value, grads = both(params)
        for p, g in zip(params, grads, strict=True):
            p -= LR * g
        return value

    return step, lambda: params


def make_mygrad(weights, X, y, loss):
    import mygrad
    from mygrad.nnet.activations import relu as mygrad_relu

    class Names:
        exp, moveaxis, sum, relu = mygrad.exp, mygrad.moveaxis, mygrad.sum, mygrad_relu

    params = [mygrad.tensor(weights[k]) for k in NAMES]
    data = mygrad.tensor(X, constant=True)

    def step():
        z, t = target(forward(Names, data, *params), y, loss)
        value = mygrad.mean(mygrad.logaddexp(0, z) - z * t)
        value.backward()
        for p in params:
            p.data -= LR * p.grad
        return value

    return step, lambda: [p.data for p in params]


def make(engine, *problem):
    if engine.startswith("jax"):
        return make_jax(*problem, jit=engine == "jax-jit")
    makers = {
        "ag": make_ag,
        "by-hand": make_by_hand,
        "torch": make_torch,
        "autograd": make_autograd,
        "mygrad": make_mygrad,
    }
    return makers[engine](*problem)


@functools.cache
def one_answer(engine, shape, dtype, loss):
    """The loss and every gradient of one step, the latter from how far the weights moved."""
    import numpy as np

    weights, X, y = draw_problem(shape, dtype)
    step, read = make(engine, weights, X, y, loss)
    value = float(np.asarray(step().data if engine == "mygrad" else step_value(step, engine)))
    moved = [(weights[k] - np.asarray(p)) / LR for k, p in zip(NAMES, read(), strict=True)]
    return value, moved


def step_value(step, engine):
    value = step()
    return value.detach().numpy() if engine == "torch" else value


def check(engine, shape, dtype, loss):
    """The largest relative difference to torch in float64; raise where it is too large."""
    import numpy as np

    value, grads = one_answer(engine, shape, dtype, loss)
    true_value, true_grads = one_answer("torch", shape, "float64", loss)
    # The gradient is read off weights of size 1 that moved by LR * grad: their rounding, over LR
    limit = 1e-9 if dtype == "float64" else 1e-4
    gap = abs(value - true_value) / abs(true_value)
    for ours, theirs in zip(grads, true_grads, strict=True):
        room = 1e-7 / LR if dtype == "float32" else 1e-13
        excess = np.abs(ours - theirs).max() - room
        gap = max(gap, float(excess / np.abs(theirs).max()))
    if not gap < limit:
        raise SystemExit(f"{engine} {shape} {dtype} {loss}: off by {gap:.2g}; nothing was timed")


def time_setting(engines, shape, dtype, loss, rounds):
    import numpy as np

    steps = {}
    for engine in engines:
        check(engine, shape, dtype, loss)
        steps[engine] = make(engine, *draw_problem(shape, dtype), loss)[0]
        steps[engine]()
    start = time.process_time()
    steps["torch"]()
    repeats = int(min(200, max(1, 0.04 / (time.process_time() - start))))
    spent = {engine: [] for engine in engines}
    for r in range(rounds):
        order = engines[r % len(engines) :] + engines[: r % len(engines)]
        for engine in order:
            if repeats > 1:
                steps[engine]()  # its own arrays back into the cache
            start = time.process_time()
            for _ in range(repeats):
                steps[engine]()
            spent[engine].append((time.process_time() - start) / repeats)
    base = np.array(spent["torch"])
    return {
        engine: {
            "ratio": round(float(np.median(np.array(t) / base)), 3),
            "ms": round(float(np.median(t)) * 1e3, 4),
        }
        for engine, t in spent.items()
    }


def child(job):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if job["pages"] == "kept":
        import querykey.ag as ag

        assert ag.keep_pages(), "only glibc can be told to keep its pages"
    job["shape"] = tuple(job["shape"])
    settings = [job[k] for k in ("engines", "shape", "dtype", "loss", "rounds")]
    print(json.dumps(time_setting(*settings)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--shapes", default="0,1,2,3")
    parser.add_argument("--dtypes", default="float32,float64")
    parser.add_argument("--losses", default="dense,document")
    parser.add_argument("--pages", default="kept,default")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(json.loads(args.child))
    here = [e for e in args.engines.split(",") if importlib.util.find_spec(ENGINES[e])]
    engines = here if "torch" in here else [*here, "torch"]
    results = []
    for pages in args.pages.split(","):
        for loss in args.losses.split(","):
            print(f"\n{loss} loss, pages {pages}: CPU time over torch eager's")
            print("  ".join([f"{'n, C, d, h':<18}{'dtype':<8}", *[f"{e:>9}" for e in engines]]))
            for shape in [SHAPES[int(i)] for i in args.shapes.split(",")]:
                for dtype in args.dtypes.split(","):
                    job = {"engines": engines, "shape": shape, "dtype": dtype, "loss": loss}
                    job |= {"rounds": args.rounds, "pages": pages}
                    row = run_child(job)
                    cells = [f"{row[e]['ratio']:>9.2f}" for e in engines]
                    title = f"{','.join(map(str, shape)):<18}{dtype:<8}"
                    print("  ".join([title, *cells]), flush=True)
                    job = {k: job[k] for k in ("shape", "dtype", "loss", "pages")}
                    results.append(job | {"engines": row})
    print(json.dumps({"benchmark": "ag", "torch": "eager, 1 thread", "results": results}))


def run_child(job):
    command = [sys.executable, __file__, "--child", json.dumps(job)]
    done = subprocess.run(command, env=os.environ | ONE | XLA, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
