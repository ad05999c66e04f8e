"""Cases that the sweep is made of: a good call of every public name, and bad values for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import querykey as qk
import querykey.ag as ag
from querykey import models, nn

Good = tuple[Callable[..., Any], dict[str, Any]]
ANY, ERROR, SAME = "an answer or a refusal", "a refusal", "the same answer"


@dataclass(frozen=True)
class Case:
    """One argument of one good call, replaced by one value."""

    name: str  # of what is called
    argument: str
    what: str  # is wrong with the value, or odd
    value: Any
    expected: str


def array(*shape: int, library: str = "torch", seed: int = 0) -> Any:
    values = np.random.default_rng((seed, *shape)).standard_normal(shape)
    return torch.tensor(values, dtype=torch.float32) if library == "torch" else values


def qkv(library: str = "torch") -> dict[str, Any]:
    shapes = {"q": (2, 4, 5, 3), "k": (2, 2, 5, 3), "v": (2, 2, 5, 7)}
    return {n: array(*s, library=library, seed=i) for i, (n, s) in enumerate(shapes.items())}


def ids(high: int = 100) -> torch.Tensor:
    return torch.arange(10).reshape(2, 5) % high


def state() -> Any:
    return qk.empty_state(qk.Softmax(), batch=2, kv_heads=2, key_dim=3, value_dim=7)


def attention() -> Any:
    torch.manual_seed(0)
    return nn.MultiHeadAttention(8, nn.AttentionConfig(heads=2))


def model(name: str = "gpt") -> Any:
    torch.manual_seed(0)
    return models.build(models.preset(name)).eval()


def linear() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2)


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD(linear().parameters(), lr=0.1)


def training_loop() -> None:
    model, optimizer = linear(), sgd()
    for _ in range(2):
        optimizer.zero_grad()
        model(array(5, 3)).square().mean().backward()
        optimizer.step()


SPECS = {"mechanism": qk.Softmax(), "mask": qk.Causal(), "start": 0}
KERNEL = qk.Kernel(qk.Quadratic())
DECAY = {"mechanism": KERNEL, "mask": qk.Causal(), "decay": -array(2, 2, 5).abs()}

# A good call of every public name. A name with a dot is a method of the object that is made.
GOOD: dict[str, Callable[[], Good]] = {
    "ALiBi": lambda: (qk.ALiBi, {"heads": 4}),
    "ALiBi.fits": lambda: (qk.ALiBi(4).fits, {"heads": 4}),
    "Argmax": lambda: (qk.Argmax, {}),
    "Blocks": lambda: (qk.Blocks, {"size": 2}),
    "Buckets": lambda: (qk.Buckets, {"table": array(8, 4)}),
    "Causal": lambda: (qk.Causal, {}),
    "Causal.matrix": lambda: (qk.Causal().matrix, {"queries": 3, "keys": 3, "start": 0}),
    "Dense": lambda: (qk.Dense, {"given": torch.ones(5, 5, dtype=torch.bool)}),
    "Dilated": lambda: (qk.Dilated, {"size": 2, "step": 2}),
    "Documents": lambda: (qk.Documents, {"ids": torch.tensor([1, 1, 2])}),
    "EluPlusOne": lambda: (qk.EluPlusOne, {}),
    "EluPlusOne.width": lambda: (qk.EluPlusOne().width, {"key_dim": 3}),
    "Global": lambda: (qk.Global, {"count": 2}),
    "Kernel": lambda: (qk.Kernel, {"features": qk.Quadratic(), "scale": 0.5}),
    "Padding": lambda: (qk.Padding, {"real": torch.tensor([1, 1, 0])}),
    "Polynomial": lambda: (qk.Polynomial, {"degree": 2, "bias": 1.0, "signed": False}),
    "Prefix": lambda: (qk.Prefix, {"count": 2}),
    "Quadratic": lambda: (qk.Quadratic, {}),
    "RandomFeatures": lambda: (qk.RandomFeatures, {"count": 4, "seed": 0}),
    "Similarity": lambda: (qk.Similarity, {"function": lambda q, k: (q @ k.mT).exp()}),
    "Softmax": lambda: (qk.Softmax, {"scale": 0.5, "softcap": 3.0}),
    "Strided": lambda: (qk.Strided, {"step": 2}),
    "Taylor": lambda: (qk.Taylor, {"order": 2, "signed": False}),
    "Window": lambda: (qk.Window, {"size": 2}),
    "attend": lambda: (qk.attend, qkv() | SPECS | {"backend": "auto"}),
    "attend numpy": lambda: (qk.attend, qkv("numpy") | SPECS),
    "attend kernel": lambda: (qk.attend, qkv() | DECAY),
    "attend bias": lambda: (qk.attend, qkv() | {"bias": array(2, 4, 5, 5)}),
    "attend sdpa": lambda: (qk.attend, qkv() | SPECS | {"backend": "sdpa"}),
    "attend reference": lambda: (qk.attend, qkv() | SPECS | {"backend": "reference"}),
    "attend chunked": lambda: (qk.attend, qkv() | DECAY | {"backend": "chunked"}),
    "attend padding": lambda: (
        lambda q, k, v, real: qk.attend(q, k, v, mask=qk.Padding(real)),
        qkv() | {"real": torch.ones(2, 5, dtype=torch.bool)},
    ),
    "attend dense": lambda: (
        lambda q, k, v, seen: qk.attend(q, k, v, mask=qk.Dense(seen)),
        qkv() | {"seen": torch.ones(5, 5, dtype=torch.bool)},
    ),
    "attend documents": lambda: (
        lambda q, k, v, documents: qk.attend(q, k, v, mask=qk.Documents(documents)),
        qkv() | {"documents": torch.tensor([[1, 1, 1, 2, 2]] * 2)},
    ),
    "empty_state": lambda: (
        qk.empty_state,
        {"mechanism": qk.Softmax(), "mask": qk.Causal(), "batch": 2, "kv_heads": 2, "key_dim": 3,
         "value_dim": 7, "capacity": 9, "like": array(3)},
    ),
    "explain": lambda: (qk.explain, qkv() | SPECS),
    "extend": lambda: (qk.extend, qkv() | {"state": state(), "real": torch.ones(2, 5)[:, :5] > 0}),
    "State.select": lambda: (state().select, {"rows": [0, 1]}),
    "weights": lambda: (qk.weights, {n: x for n, x in qkv().items() if n != "v"} | SPECS),
    "array": lambda: (lambda n, d: qk.array("n", n, d), {"n": 4, "d": 3}),
    "images": lambda: (lambda c, h, w: qk.images("n", c, h, w), {"c": 3, "h": 8, "w": 8}),
    "tokens": lambda: (lambda b, t: qk.tokens(b, t), {"b": "batch", "t": "seq"}),
    "cost": lambda: (qk.cost, {"model": linear(), "inputs": qk.array("n", 3)}),
    "check": lambda: (qk.check, {"model": linear(), "kind": "encoder", "laws": ["purity"],
                                 "weights": "both", "seed": 0}),
    "check_all": lambda: (qk.check_all, {"targets": []}),
    "check_training": lambda: (
        lambda run, model, optimizer: qk.check_training(run, model=model, optimizer=optimizer),
        {"run": training_loop, "model": linear(), "optimizer": sgd()},
    ),
    "Report": lambda: (qk.Report, {"target": "a", "kind": "decoder", "laws": []}),
    "Subject": lambda: (qk.Subject, {"forward": linear()}),
    "generate": lambda: (
        qk.generate,
        {"model": model(), "ids": ids(), "max_new_tokens": 2, "real": torch.ones(2, 5) > 0,
         "temperature": 1.0, "top_k": 3, "top_p": 0.5, "stop": 1, "seed": 0},
    ),
    "probe": lambda: (
        qk.probe, {"model": linear(), "data": (array(12, 3), torch.arange(12) % 2)}
    ),
    # Layers and models
    "AttentionConfig": lambda: (
        nn.AttentionConfig,
        {"heads": 4, "kv_heads": 2, "key_dim": 3, "value_dim": 3, "dropout": 0.1},
    ),
    "MultiHeadAttention": lambda: (nn.MultiHeadAttention, {"width": 8, "config": 2}),
    "MultiHeadAttention.forward": lambda: (
        attention(), {"x": array(2, 5, 8), "real": torch.ones(2, 5) > 0}
    ),
    "MLP": lambda: (nn.MLP, {"width": 8, "config": 2}),
    "Decoder.forward": lambda: (model(), {"ids": ids(), "real": torch.ones(2, 5) > 0}),
    "Encoder.forward": lambda: (model("bert"), {"ids": ids(), "real": torch.ones(2, 5) > 0}),
    "Decoder.empty_state": lambda: (model().empty_state, {"batch": 2, "capacity": 3}),
    "models.preset": lambda: (models.preset, {"name": "gpt"}),
    "models.load": lambda: (models.load, {"folder": "nowhere"}),
    "models.save": lambda: (models.save, {"model": linear(), "folder": "nowhere"}),
}  # fmt: skip
LOADS = {"models.load", "models.save"}  # whose good call is refused: there is no such folder
# Errors and constants, which take nothing that could be wrong.
APART = {"CostError", "QuerykeyError", "ShapeError", "FULL"}

X = np.random.default_rng(0).uniform(0.2, 0.8, (3, 4))
AG = {
    "abs add argmax broadcast_to clip cos cumsum divide erf exp expand_dims gelu getitem log "
    "log_softmax logsumexp matmul max maximum mean min minimum mod moveaxis multiply negative norm "
    "power prod relu reshape sigmoid sin softmax split sqrt square squeeze stack std subtract sum "
    "swapaxes take take_along_axis tanh transpose tril triu var where astype concatenate einsum"
}


def _ag() -> dict[str, Callable[[], Good]]:
    """Return a good call of every function of `querykey.ag`."""
    special: dict[str, Callable[[], dict[str, Any]]] = {
        "broadcast_to": lambda: {"x": X, "shape": (2, 3, 4)},
        "clip": lambda: {"x": X, "low": 0.3, "high": 0.6},
        "expand_dims": lambda: {"x": X, "axis": 1},
        "getitem": lambda: {"x": X, "index": 1},
        "matmul": lambda: {"a": X, "b": X.T.copy()},
        "moveaxis": lambda: {"x": X, "source": 0, "destination": 1},
        "reshape": lambda: {"x": X, "shape": (4, 3)},
        "split": lambda: {"x": X, "sections": 2, "axis": 1},
        "stack": lambda: {"xs": [X, X], "axis": 0},
        "concatenate": lambda: {"xs": [X, X], "axis": 0},
        "swapaxes": lambda: {"x": X, "a": 0, "b": 1},
        "take": lambda: {"x": X, "indices": np.array([0, 2]), "axis": 0},
        "take_along_axis": lambda: {"x": X, "indices": np.array([[0], [1], [2]]), "axis": 1},
        "where": lambda: {"condition": X > 0.5, "a": X, "b": 1.0},
        "astype": lambda: {"x": X, "dtype": np.float32},
        "einsum": lambda: {"subscripts": "ij,kj->ik", "a": X, "b": X},
        "tril": lambda: {"x": X, "k": 0},
        "triu": lambda: {"x": X, "k": 0},
        "transpose": lambda: {"x": X, "axes": (1, 0)},
        "squeeze": lambda: {"x": X[:, :1], "axis": 1},
    }
    two = "add divide maximum minimum mod multiply power subtract".split()  # noqa: SIM905
    axis = (
        "argmax cumsum log_softmax logsumexp max mean min norm prod softmax std sum var".split()  # noqa: SIM905
    )
    calls: dict[str, Callable[[], Good]] = {}
    for name in " ".join(AG).split():
        if name in special:
            make = special[name]
        elif name in two:
            make = lambda: {"x1": X, "x2": X[0]}  # noqa: E731
        elif name in axis:
            make = lambda: {"x": X, "axis": 1}  # noqa: E731
        else:
            make = lambda: {"x": X}  # noqa: E731
        calls[f"ag.{name}"] = lambda name=name, make=make: (_called(name), make())
    return calls


def _called(name: str) -> Callable[..., Any]:
    f = getattr(ag, name)
    if name == "einsum":
        return lambda subscripts, a, b: f(subscripts, a, b)
    return f


GOOD |= _ag()
GOOD |= {
    "ag.Tensor": lambda: (ag.Tensor, {"data": X}),
    "ag.SGD": lambda: (
        ag.optim.SGD,
        {"params": [ag.Tensor(X)], "lr": 0.1, "momentum": 0.1, "weight_decay": 0.1},
    ),
    "ag.Adam": lambda: (
        ag.optim.Adam,
        {"params": [ag.Tensor(X)], "lr": 0.1, "epsilon": 1e-8, "weight_decay": 0.1},
    ),
    "ag.gradcheck": lambda: (lambda x: ag.gradcheck(ag.exp, x), {"x": X}),
}
# Modules, and what takes any name or function that a user writes.
AG_APART = {"Drawing", "draw", "keep_pages", "nn", "optim", "record"}

JUNK = {
    "None": None, "text": "nosuch", "a dict": {}, "an object": object(), "a class": dict,
    "a function": print, "bytes": b"x", "complex": 1j, "an empty list": [],
}  # fmt: skip
INTS = {
    "zero": 0, "minus one": -1, "2^40": 2**40, "2^63": 2**63, "10^30": 10**30,
    "minus 10^30": -(10**30),
    "a fraction": 1.5, "a float": 2.0, "NaN": math.nan, "infinity": math.inf, "a bool": True,
    "digits": "3", "a list": [1], "a pair": (1, 2),
    "an array": np.ones(2), "a tensor": torch.ones(2),
}  # fmt: skip
FLOATS = {
    "zero": 0.0, "minus one": -1.0, "NaN": math.nan, "infinity": math.inf,
    "minus infinity": -math.inf,
    "1e308": 1e308, "10^400": 10**400, "a bool": True, "digits": "0.5", "a list": [0.5],
    "an array": np.ones(2), "a tensor": torch.ones(2),
}  # fmt: skip
TEXTS = {
    "empty": "", "unknown": "nosuch", "null": "\0", "long": "x" * 5000, "control": "\x1b[31m\n",
    "unicode": "ä\u202e😀", "a number": 5, "a slash": "../..", "a surrogate": "\udcff",
}  # fmt: skip
BEYOND = {"with NaN", "with infinity", "with 1e30", "with -1e30"}
MUST_FAIL = {"text", "a dict", "an object", "a class", "bytes", "complex"}
# Where a value of another kind has a meaning: a size may be a name, ids a collection.
TAKES = {
    ("ALiBi.fits", "heads"): MUST_FAIL, ("EluPlusOne.width", "key_dim"): MUST_FAIL,
    ("ag.stack", "xs"): {"bytes"},
    ("array", "n"): {"text"}, ("array", "d"): {"text"},
    **{("images", size): {"text"} for size in "chw"},
    ("generate", "stop"): {"a dict", "bytes"},
}  # fmt: skip


def values(good: Any) -> Iterator[tuple[str, Any, str]]:
    """Yield what may stand in place of a good value: what it is, the value, what must happen."""
    if isinstance(good, np.ndarray | torch.Tensor):
        yield from _arrays(good)
        yield from ((what, v, ERROR if what in MUST_FAIL else ANY) for what, v in JUNK.items())
        return
    may = (
        {"text"}
        if isinstance(good, str)
        else {"a dict"}
        if isinstance(good, dict | list | tuple)
        else set()
    )
    may |= {"a class"} if callable(good) else set()
    junk = ((w, v, ERROR if w in MUST_FAIL - may else ANY) for w, v in JUNK.items())
    yield from junk
    if isinstance(good, bool):
        yield from ((what, v, ANY) for what, v in INTS.items())
    elif isinstance(good, int):
        yield "an integer of NumPy", np.int64(good), SAME
        yield from ((what, v, ANY) for what, v in INTS.items())
    elif isinstance(good, float):
        yield "a number of NumPy", np.float64(good), SAME
        yield from ((what, v, ANY) for what, v in FLOATS.items())
    elif isinstance(good, str):
        yield from ((what, v, ANY) for what, v in TEXTS.items())
    elif isinstance(good, list | tuple):
        yield "twice", type(good)([*good, *good]), ANY
        yield "a list of None", [None], ANY
        yield from ((f"a list of {what}", [v], ANY) for what, v in INTS.items())
    else:
        yield "its class", type(good), ANY


def _arrays(good: Any) -> Iterator[tuple[str, Any, str]]:
    """Yield other arrays: of other ranks, sizes, types, values, layouts and libraries."""
    tensor = isinstance(good, torch.Tensor)
    floats = good.is_floating_point() if tensor else good.dtype.kind == "f"
    yield "rank 0", good.reshape(-1)[0], ANY
    yield "one axis less", good[0], ANY
    yield "one axis more", good[None], ANY
    yield "flat", good.reshape(-1), ANY
    for axis in range(good.ndim):
        keep = [slice(None)] * good.ndim
        for what, part in (("empty", slice(0, 0)), ("of size one", slice(0, 1))):
            yield f"axis {axis} {what}", good[(*keep[:axis], part)], ANY
        both = torch.cat([good, good], axis) if tensor else np.concatenate([good, good], axis)
        yield f"axis {axis} twice", both, ANY
    yield "a list", good.tolist(), ANY
    yield "of the other library", good.numpy() if tensor else torch.tensor(good), ANY
    order = tuple(reversed(range(good.ndim)))
    if tensor:
        strided = good.permute(order).contiguous().permute(order)
        types = [
            torch.int64,
            torch.bool,
            torch.uint8,
            torch.complex64,
            torch.float16,
            torch.bfloat16,
        ]
        types += [torch.float64, torch.float8_e4m3fn]
        yield from ((f"of {t}", good.to(t), ANY) for t in types)
        yield "on meta", good.to("meta"), ANY
        yield "sparse", good.to_sparse(), ERROR
        yield "inference", _inference(good), SAME
    else:
        strided = np.ascontiguousarray(good.transpose(order)).transpose(order)
        types = ["int64", "bool", "uint8", "complex64", "float16", "float32", "object", "U4"]
        yield from ((f"of {t}", good.astype(t), ANY) for t in types)
        yield "of the other byte order", good.astype(good.dtype.newbyteorder()), SAME
        yield "read only", _read_only(good), SAME
        yield "masked", np.ma.masked_array(good, mask=good > good.mean()), ANY
    yield "not contiguous", strided, SAME
    yield "a copy", good.clone() if tensor else good.copy(), SAME
    if floats:
        for what, value in (
            ("NaN", math.nan),
            ("infinity", math.inf),
            ("1e30", 1e30),
            ("-1e30", -1e30),
        ):
            bad = good.clone() if tensor else good.copy()
            bad.reshape(-1)[0] = value
            yield f"with {what}", bad, ANY
        yield "negative", -abs(good) - 1, ANY
        yield "all zero", good * 0, ANY


def _inference(good: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return good.clone()


def _read_only(good: np.ndarray) -> np.ndarray:
    out = good.copy()
    out.flags.writeable = False
    return out


def cases(
    calls: Mapping[str, Callable[[], Good]] = GOOD,
    refused: Container[str] = LOADS,
    takes: Mapping[tuple[str, str], Container[str]] = TAKES,
) -> Iterator[Case]:
    """Yield every case: each argument of each good call with each value that may stand there."""
    for name, make in calls.items():
        for argument, good in make()[1].items():
            for what, value, expected in values(good):
                wanted = ERROR if name in refused else expected
                wanted = ANY if what in takes.get((name, argument), ()) else wanted
                yield Case(name, argument, what, value, wanted)
