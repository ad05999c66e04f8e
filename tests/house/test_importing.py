"""What importing costs: nothing heavy is loaded before it is used, and the command is quick."""

import resource
import subprocess
import sys
from pathlib import Path

from tests.house.source import python

QK = str(Path(sys.executable).with_name("qk"))


def test_numpy_callers_never_load_torch():
    loaded = python("""
import sys
import numpy as np
import querykey as qk
x = np.ones((1, 2, 3, 4))
qk.attend(x, x, x, mask=qk.Causal() & qk.Padding(np.ones((1, 3), bool)))
qk.extend(x, x, x, qk.empty_state(qk.Kernel(qk.Quadratic()), kv_heads=2, key_dim=4, value_dim=4))
print(qk.explain(x, x, x), "torch" in sys.modules)
""")
    assert loaded.strip().endswith("False")


def cpu_seconds(command: list[str]) -> float:
    """Processor time of the quickest of five runs: what a busy machine cannot stretch."""
    spent = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return min(spent)


def test_importing_is_quick_and_loads_nothing_heavy():
    heavy = ("torch", "sympy", "triton", "transformers", "matplotlib")
    code = f"import querykey, sys; print([name for name in {heavy} if name in sys.modules])"
    assert python(code).strip() == "[]"
    bare, ours = (cpu_seconds([sys.executable, "-c", code]) for code in ("", "import querykey"))
    assert ours - bare < 0.15


def test_help_is_quick():
    """Our own part takes no longer than the libraries: in seconds, machines differ too much."""
    libraries = cpu_seconds([sys.executable, "-c", "import cyclopts, rich.markdown"])
    assert cpu_seconds([QK, "--help"]) < 2 * libraries
