"""`pytest --qk` and the fixture `lawful`, in runs of their own; and what they cost where unused."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from tests.leaky_layer import LAYER

ROOT = Path(__file__).parent.parent
MODEL = (
    LAYER
    + """
def stack(*aheads):
    return nn.Sequential(nn.Embedding(40, 16), *map(Layer, aheads), nn.Linear(16, 40))

def leaky():
    return stack(0, 1)

def fine():
    return stack(0, 0)
"""
)
TESTS = """
from model import fine, leaky

def test_fine(lawful):
    lawful(fine(), laws=["causality.perturb"])

def test_leaky(lawful):
    lawful(leaky(), laws=["causality.perturb"])
"""


def run(folder: Path, *words: str) -> tuple[int, str]:
    """The exit code and the output of pytest with the plugin, in a folder."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "querykey.pytest_plugin", "-p", "no:cacheprovider",
         "--rootdir", str(folder), *words],
        cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200"},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    return tmp_path


@pytest.mark.slow
def test_every_law_of_a_target_is_a_test(folder):
    code, out = run(folder, "--qk", "model.py:leaky", "--qk-law", "causality", "-rA")
    assert code == 1, out
    assert "3 failed" in out
    assert "FAILED model.py:leaky::causality.perturb" in out
    assert "first module to blame: 2 (Layer, model.py:10)" in out
    assert "pytest_plugin.py" not in out  # no traceback of ours
    laws = ("--qk-law", "purity", "--qk-law", "padding.left")
    code, out = run(folder, "--qk", "model.py:fine", *laws, "-rA")
    assert code == 0, out
    assert "1 passed, 1 skipped" in out
    assert "it takes no padding mask" in out
    code, out = run(folder, "--qk", "model.py:fine", *laws, "-k", "purity")
    assert "1 passed, 1 deselected" in out


@pytest.mark.slow
def test_what_cannot_be_built_fails_in_its_own_words(folder):
    code, out = run(folder, "--qk", "model.py:missing", "--qk-law", "purity")
    assert code == 1, out
    assert "`model.py` has no `missing`" in out
    code, out = run(folder, "--qk", "model.py:fine", "--qk-law", "casuality")
    assert code == 4, out
    assert "no law is called `casuality`" in out


@pytest.mark.slow
def test_the_fixture_fails_a_test_with_the_report(folder):
    (folder / "test_model.py").write_text(TESTS)
    code, out = run(folder, "test_model.py")
    assert code == 1, out
    assert "1 failed, 1 passed" in out
    assert "BROKEN causality.perturb" in out


def test_unused_it_imports_neither_torch_nor_the_laws(folder):
    (folder / "test_nothing.py").write_text(
        "import sys\n\ndef test_nothing():\n"
        "    ours = [name for name in sys.modules if name.startswith('querykey')]\n"
        "    assert set(ours) <= {'querykey', 'querykey.pytest_plugin'}\n"
        "    assert 'torch' not in sys.modules\n"
    )
    code, out = run(folder, "test_nothing.py")
    assert code == 0, out
    assert "1 passed" in out


def test_the_project_names_the_plugin_as_its_entry_point():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"querykey": "querykey.pytest_plugin"}


PAGE = (ROOT / "docs" / "ci.md").read_text()


def block(language: str) -> str:
    """The text of the page's last block of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)[-1]


@pytest.mark.slow
def test_the_tests_of_the_page_pass(folder):
    (folder / "test_page.py").write_text(block("python"))
    code, out = run(folder, "test_page.py")
    assert code == 0, out
    assert "2 passed" in out


@pytest.mark.slow
def test_the_workflow_of_the_page_writes_what_it_uploads(folder):
    workflow = yaml.safe_load(block("yaml"))
    steps = workflow["jobs"]["laws"]["steps"]
    (command,) = [step["run"] for step in steps if "qk check" in step.get("run", "")]
    uploads = " ".join(str(step["with"]) for step in steps if "upload" in step.get("uses", ""))
    (folder / "model.py").write_text(MODEL + "\n\ndef make():\n    return leaky()\n")
    qk = Path(sys.executable).with_name("qk")
    words = [str(qk), *shlex.split(command)[1:]]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    for name in ("laws.xml", "laws.sarif", "shown"):
        assert (folder / name).exists()
        assert name in uploads
