"""Every script that a breach comes with shows it in a process of its own, and not on a lawful twin.

The scripts are plain torch. One fault per law is tried always, all of them in the full run.
"""

import importlib
import multiprocessing
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from tests.laws import mutants
from tests.leaky_layer import LAYER
from torch import nn

from querykey import cli
from querykey.laws import LAWS, Evidence, Law, Outcome, check

ROOT = Path(__file__).parent.parent.parent
# A law that a script cannot show: advice, which comes without one.
LOUD = {"library-a-float32-island", "transformer-scale-missing"}
FAULTS = [fault for fault in mutants.FAULTS if fault.id not in LOUD]
FIRST = {fault.law: fault.id for fault in reversed(FAULTS)}
CASES = [
    pytest.param(fault, id=fault.id, marks=[] if FIRST[fault.law] == fault.id else pytest.mark.full)
    for fault in FAULTS
]


def run(script: Path) -> tuple[int, str]:
    """Run a script as it is, in a folder that is not the model's; return its code and output."""
    done = subprocess.run(
        [sys.executable, script.name], cwd=script.parent, capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def code_of_a_fork(script: Path) -> int | None:
    """Run a script in a process that has torch already, and return its exit code."""
    child = multiprocessing.get_context("fork").Process(target=runpy.run_path, args=(str(script),))
    child.start()
    child.join()
    return child.exitcode


@pytest.mark.slow
@pytest.mark.parametrize("fault", CASES)
def test_a_script_shows_the_breach_and_no_breach_of_the_lawful_twin(fault, tmp_path):
    mutants.build(fault.style, tmp_path, fault.old, fault.new, "model")
    model = tmp_path / f"{fault.style}_model.py"
    finding = check(f"{model}:make", laws=[fault.law]).law(fault.law)
    assert finding.verdict == "violated"
    assert finding.repro, finding
    assert "qk.check" not in finding.repro
    assert "querykey" not in finding.repro.replace("querykey.laws", "")
    script = tmp_path / "elsewhere" / "show.py"
    script.parent.mkdir()
    script.write_text(finding.repro)
    code, out = run(script)
    assert (code, out.count("\n")) == (1, 1), out
    model.write_text((mutants.STYLES / f"{fault.style}.py").read_text())
    assert code_of_a_fork(script) == 0


def test_every_law_that_faults_are_known_of_has_a_script_here():
    advice = {"saturation"}
    planted = {fault.law for fault in mutants.FAULTS} - advice
    assert set(FIRST) == planted
    others = {law.name for law in LAWS} - planted - advice
    assert (
        others
        == set(OTHERS)
        | {"padding.gradient"}
        | (set(PLANTED) - planted)
        | {"agreement"}  # tests/laws/test_agreement.py runs its scripts, which make two models
        | ON_REQUEST
    )


PLANTED = {}  # by law, the first planted fault whose twin is one of the same file
for file in sorted(file.stem for file in (ROOT / "tests" / "laws" / "planted").glob("*.py")):
    for place, case in enumerate(importlib.import_module(f"tests.laws.planted.{file}").CASES):
        if not isinstance(case.lawful(), tuple):
            PLANTED.setdefault(case.laws[0], (file, place))
ON_REQUEST = {"paths.compile", "paths.export"}  # their scripts are tried with the laws
FACTORY = """
import sys
sys.path.insert(0, {root!r})
from tests.laws.planted.{file} import CASES

def make():
    return CASES[{place}].{which}()
"""


@pytest.mark.slow
@pytest.mark.parametrize("law", sorted(set(PLANTED) - set(FIRST)))
def test_a_planted_fault_has_a_script_that_its_twin_passes(law, tmp_path):
    file, place = PLANTED[law]
    mine = tmp_path / "mine.py"
    mine.write_text(FACTORY.format(root=str(ROOT), file=file, place=place, which="faulty"))
    finding = check(f"{mine}:make", laws=[law]).law(law)
    assert finding.repro, finding
    assert "querykey" not in finding.repro
    script = tmp_path / "show.py"
    script.write_text(finding.repro)
    code, out = run(script)
    assert code == 1, out
    mine.write_text(FACTORY.format(root=str(ROOT), file=file, place=place, which="lawful"))
    assert code_of_a_fork(script) == 0


OTHERS = {
    "backend.agree": """
        class Attention(nn.Module):
            backends = ("plain", "fast")

            def __init__(self):
                super().__init__()
                self.table, self.backend = nn.Embedding(40, 16), "plain"

            def forward(self, ids):
                x = self.table(ids)
                scores = x @ x.mT / (4 if self.backend == "plain" else 5)
                return x + scores.softmax(-1) @ x
        """,
    "equivariance": """
        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.table = nn.Embedding(40, 16)

            def forward(self, ids):
                x = self.table(ids)
                return x + torch.arange(x.size(1))[:, None] * (x @ x.mT / 4).softmax(-1) @ x
        """,
}
HEAD = "import torch\nfrom torch import nn\nimport querykey as qk\n"
MAKE = "\ndef make():\n    return qk.Subject(Attention(), causal=False, ordered=False)\n"


@pytest.mark.slow
@pytest.mark.parametrize("law", OTHERS)
def test_other_laws_have_scripts_too(law, tmp_path):
    (tmp_path / "mine.py").write_text(HEAD + textwrap.dedent(OTHERS[law]) + MAKE)
    finding = check(f"{tmp_path / 'mine.py'}:make", laws=[law]).law(law)
    assert finding.verdict == "violated"
    assert finding.repro
    script = tmp_path / "show.py"
    script.write_text(finding.repro)
    assert run(script)[0] == 1


LEAKY = (
    LAYER
    + """
import querykey as qk

def leaky():
    return nn.Sequential(nn.Embedding(40, 16), Layer(0), Layer(1))

def features():
    return nn.Sequential(nn.Linear(24, 16), Layer(0), Layer(1))

def told():
    net = leaky()
    return qk.Subject(lambda ids: net(ids).mT, example=torch.randint(40, (2, 7)), causal=True)
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("factory", ["leaky", "features", "told"])
def test_the_command_writes_scripts_into_a_folder(factory, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(LEAKY)
    words = ["check", f"mine.py:{factory}", "--law", "causality", "--kind", "decoder"]
    words += ["--repro", "shown"]
    assert cli.run(words) == 1
    out = capsys.readouterr().out
    files = sorted(file.name for file in (tmp_path / "shown").iterdir())
    laws = ["gradient", "perturb", "prefix"]
    assert files == [f"mine_{factory}.causality.{law}.py" for law in laws]
    assert f"to reproduce: python shown/mine_{factory}.causality.perturb.py" in out
    for file in files:
        code, out = run(tmp_path / "shown" / file)
        assert code == 1, out
    assert cli.run([*words[:-1], "mine.py"]) == 2
    assert "it is no folder" in capsys.readouterr().err


def test_a_model_without_a_name_has_a_script_with_a_place_for_it(tmp_path):
    class Layer(nn.Module):
        def forward(self, x):
            return x + x.flip(1)

    model = nn.Sequential(nn.Embedding(40, 16), Layer())
    state = torch.get_rng_state(), torch.get_default_dtype(), torch.Tensor.float
    repro = check(model, kind="decoder").law("causality.perturb").repro
    assert repro
    assert (torch.get_default_dtype(), torch.Tensor.float) == state[1:]
    assert torch.equal(torch.get_rng_state(), state[0])
    assert 'raise SystemExit("build the model here")' in repro


def test_a_law_of_ones_own_without_runs_has_no_script():
    def measured(runner, setting):
        yield Outcome(1.0, "it is so", setting, evidence=Evidence())

    law = Law("mine.own", "It is.", "Otherwise not.", "It is measured.", measured)
    finding = check(nn.Linear(3, 2), laws=[law]).law("mine.own")
    assert (finding.verdict, finding.repro) == ("violated", None)
