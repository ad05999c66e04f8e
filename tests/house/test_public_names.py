"""Which names and options are public: each works, none is overwritten, and a change is recorded."""

import ast
import os

import pytest
from tests.house.source import ROOT, SOURCE, python

import querykey

SNAPSHOTS = ROOT / "tests" / "snapshots"

# One call per public name, so that a name which a room has overwritten shows itself.
Q = "np.eye(3)"
CALLS = {
    "ALiBi": "f(2).fits(2)",
    "Argmax": "f() == f()",
    "Blocks": "f(2).visible(2, 3)",
    "Buckets": "f(np.ones((8, 2))).fits(2)",
    "Causal": "f().visible(2, 1)",
    "Dense": f"f({Q} > 0).matrix(3, 3).sum() == 3",
    "Dilated": "f(2, 2).visible(2, 0)",
    "Documents": "f(np.array([1, 1, 2])).matrix(3, 3).sum() == 5",
    "EluPlusOne": "f().width(5) == 5",
    "FULL": "f.visible(0, 1)",
    "Global": "f(1).visible(0, 7)",
    "Kernel": "f(qk.Quadratic()).scale == 1",
    "Padding": "f(np.array([1, 0])).matrix(1, 2).sum() == 1",
    "Polynomial": "f(2).width(2) == 6",
    "Prefix": "f(2).visible(9, 1)",
    "Quadratic": "f().width(2) == 6",
    "RandomFeatures": "f(4).width(2) == 4",
    "QuerykeyError": "issubclass(f, ValueError)",
    "ShapeError": "str(f('axis `a` is wrong', {})) == 'axis `a` is wrong'",
    "Similarity": "f(len).function is len",
    "Softmax": "f().scale is None",
    "Strided": "f(2).visible(1, 4)",
    "Taylor": "f(2).width(2) == 6",
    "Window": "f(2).visible(1, 2)",
    "attend": f"f({Q}, {Q}, {Q}).shape == (3, 3)",
    "empty_state": "f(qk.Softmax(), kv_heads=1, key_dim=3, value_dim=3).nbytes == 0",
    "explain": f"f({Q}, {Q}, {Q}).backend == 'reference'",
    "extend": (
        "f(*[np.ones((1, 1, 2, 3))] * 3, "
        "qk.empty_state(qk.Softmax(), kv_heads=1, key_dim=3, value_dim=3))[0].shape == (1, 1, 2, 3)"
    ),
    "Report": "f('a', 'decoder', []).violations == []",
    "Subject": "f(print).causal is None",
    "check": "f(__import__('torch').nn.Linear(3, 2), laws=['purity']).violations == []",
    "check_all": "f([]) == []",
    "check_training": "f(lambda: None).kind == 'training'",
    "generate": (
        "f(qk.models.build(qk.models.preset('gpt')), __import__('torch').tensor([[1, 2]]), "
        "max_new_tokens=3).shape == (1, 5)"
    ),
    "probe": "f.__module__ == 'querykey.models.probe'",
    "weights": f"f({Q}, {Q}).shape == (3, 3)",
    "CostError": "str(f('no')) == 'no'",
    "array": "str(f('n', 4)) == 'array(n, 4)'",
    "cost": "f(__import__('torch').nn.Linear(3, 2), qk.array('n', 3)).params == 8",
    "images": "str(f('n', 3, 8, 8)) == 'images(n, 3, 8, 8)'",
    "tokens": "str(f('n', 't')) == 'tokens(n, t)'",
}


def test_no_room_overwrites_a_public_name():
    assert set(CALLS) == set(querykey._HOME)
    assert not set(querykey._HOME) & set(querykey._ROOMS)
    python(f"""
import importlib, pkgutil
import numpy, querykey
for found in pkgutil.walk_packages(querykey.__path__, "querykey."):
    try:
        importlib.import_module(found.name)
    except ModuleNotFoundError as error:
        assert error.name == "triton", error  # which only Linux has
for _ in range(2):
    for name, call in {CALLS!r}.items():
        assert eval(call, {{"f": getattr(querykey, name), "qk": querykey, "np": numpy}}), name
""")


def test_a_wrong_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module `querykey` has no attribute `atend`"):
        _ = querykey.atend


def snapshot(name: str, now: str) -> str:
    """The stored text; written anew when asked, so that a change is a reviewed line."""
    file = SNAPSHOTS / name
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.write_text(now)
    return file.read_text()


def test_public_names_are_as_recorded():
    now = "".join(f"{name}\n" for name in dir(querykey))
    assert now == snapshot("public_names.txt", now)


def test_command_line_options_are_as_recorded():
    from querykey.cli import app

    lines = []
    for verb in sorted(name for name in app if not name.startswith("-")):
        arguments = app[verb].assemble_argument_collection(default_parameter=app.default_parameter)
        words = sorted(name for argument in arguments for name in argument.names)
        lines.append(" ".join(["qk", verb, *words]) + "\n")
    now = "".join(lines)
    assert now == snapshot("command_line.txt", now)


def test_type_checkers_see_the_same_names():
    """The imports that only type checkers read name what is loaded on first use, from there."""
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname: node.module for node in imports for alias in node.names}
    assert seen == {name: f"querykey.{home}" for name, home in querykey._HOME.items()}
