"""How a report reads: 80 columns, shares, factored formulas, a page, two targets, a drawing."""

import json
import re
from xml.etree import ElementTree

import pytest
import sympy
from torch import nn

import querykey as qk
from querykey import cli
from querykey.costs import tables
from querykey.costs.render import View, as_text, page
from querykey.costs.tree import tree
from querykey.costs.written import written

batch, seq, d = sympy.symbols("batch seq d")


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (8 * batch * seq * d**2 + 2 * batch * d * seq**2, "2 batch d seq (4 d + seq)"),
        (3 * batch + 7, "3 batch + 7"),
        (6 * seq**2, "6 seq^2"),
        (d**2 - seq**2, "d^2 - seq^2"),
        (sympy.Integer(12345678), "12,345,678"),
        (42, "42"),
        (sympy.Max(batch, 3 * seq), "Max(batch, 3 seq)"),
    ],
)
def test_a_formula_is_factored_where_that_is_shorter(formula, text):
    assert written(formula) == text


def test_a_formula_that_is_too_wide_loses_its_last_terms():
    formula = 7 * batch**2 * seq + 11 * seq**2 - 13 * d**3 + 17
    whole = written(formula)
    for width in (10, 20, 30, len(whole) - 1):
        assert len(written(formula, width)) <= width
        assert written(formula, width).endswith("...")
    assert written(formula, len(whole)) == whole


@pytest.fixture(scope="module")
def report():
    block = [nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True) for _ in range(3)]
    layers = nn.Sequential(nn.Embedding(11, 8), *block, nn.Linear(8, 11))
    return qk.cost(layers, qk.tokens("batch", "a_long_name_of_a_size"))


def shown(report, width, view=None):
    from io import StringIO

    from rich.console import Console

    out = StringIO()
    console = Console(file=out, width=width)
    console.print(*tables(report, view))
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 100])
def test_nothing_is_wider_than_the_terminal_and_no_formula_wraps(report, width):
    text = shown(report, width)
    assert max(map(len, text.splitlines())) <= width
    assert "1-3 (3 times)" in text
    head = next(line for line in text.splitlines() if line.startswith("module"))
    assert ("saved bytes" in head) == (width > 160)
    rows = text.splitlines()[text.splitlines().index(head) + 1 :]
    assert all(re.search(r"\d %", row) for row in rows[: rows.index("")])
    assert "All columns: --full" in text


@pytest.mark.parametrize("width", [60, 80])
def test_a_long_name_of_a_module_is_cut_so_that_its_row_just_fits(width):
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))
    model.add_module("a_name_that_goes_on" * 6, nn.Linear(11, 7))
    text = shown(qk.cost(model, qk.tokens("n", "t")), width)
    rows = text[text.index("module") : text.index("\n\n", text.index("module"))].splitlines()
    assert max(map(len, rows)) == width
    assert any(re.match(r" *a_name_that_goes", row) for row in rows)


def test_everything_is_shown_where_it_is_asked_for(report):
    text = shown(report, 80, View(full=True))
    for name in ("saved bytes", "class", "span", "bytes moved", "peak, inference"):
        assert name in text
    deep = shown(report, 400, View(modules=True))
    assert "self_attn (3 times)" in deep
    assert "FLOPs forward" in as_text(report)


def test_powers_are_raised_in_a_page(report):
    html = page(report, "<a model>")
    assert "a_long_name_of_a_size<sup>2</sup>" in html
    assert "What &lt;a model&gt; costs" in html
    assert f"<td>{int(report.params):,}</td>" in html


def test_shares_of_modules_sum_to_the_whole(report):
    rows = tree(report)
    assert sum(row.share for row in rows if row.level == 1) == pytest.approx(1)
    layers = next(row for row in rows if row.name == "1-3")
    inside = [row for row in rows if row.level == 2]
    assert layers.times == 3
    assert 0 < sum(row.share for row in inside) <= layers.share + 1e-9
    at = report.at(batch=2, a_long_name_of_a_size=5)
    flops = [at.modules[path].flops for path in ("", "4")]
    whole, head = (f.forward + f.backward for f in flops)
    assert next(r for r in tree(at) if r.path == "4").share == pytest.approx(head / whole)


@pytest.fixture
def targets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text("""
from torch import nn

class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.map = nn.Linear(6, 6, bias=False)

    def forward(self, x):
        return self.map(x) @ x.mT

def linear(width=30):
    return nn.Sequential(nn.Linear(6, width, bias=False), nn.Linear(width, 6, bias=False))

scores = Scores
""")


def run(capsys, *words):
    code = cli.run([*words, "--input", "array(n,t,6)"])
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.mark.usefixtures("targets")
def test_two_targets_are_equal_where_their_formulas_are(capsys):
    words = ("cost", "models.py:linear", "width=33", "--versus", "models.py:scores")
    code, out, err = run(capsys, *words)
    assert (code, err) == (0, "")
    # 4 * 6 * 33 n t against 2 n t (36 + 6 t)
    assert re.search(
        r"FLOPs forward +first +792 n t\n +second +12 n t \(t \+ 6\)\n +equal +at t = 60", out
    )
    code, out, _ = run(capsys, *words, "--json")
    found = json.loads(out)["versus"]
    assert found[0]["equal"]["t"] == ["60"]
    assert found[0]["second"] == "12*n*t**2 + 72*n*t"


@pytest.mark.usefixtures("targets")
def test_a_cost_is_drawn_against_a_size(capsys, tmp_path):
    words = ("cost", "models.py:scores", "--at", "n=2", "--plot", "t=8:1024")
    code, out, err = run(capsys, *words)
    assert (code, err) == (0, "")
    titles = [t.text for t in ElementTree.fromstring(out).iter("{http://www.w3.org/2000/svg}title")]
    assert "forward: 8, 2688" in titles  # 2 * 2 * 8 * (36 + 6 * 8)
    assert "forward: 1024, 2.53133e+07" in titles
    assert run(capsys, *words, "--html", "page.html")[:2] == (0, "")
    page = (tmp_path / "page.html").read_text()
    assert "<svg" in page
    assert "24\u00a0t\u00a0(t\u00a0+\u00a06)" in page
    assert re.search(r"querykey [\d.]+, \d{4}-\d\d-\d\d: models.py:scores, at n=2 and in t", page)


@pytest.mark.usefixtures("targets")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--plot", "t"), "`t` is no range of a size; write --plot seq=128:131072"),
        (("--plot", "t=9:4"), "`t=9:4` is no range of a size; write --plot seq=128:131072"),
        (("--plot", "t=1:4"), "--plot draws one size, so put the others in: --at n=8"),
        (("--plot", "u=1:4"), "--plot: there is no size `u` (the sizes: n, t)"),
        (("--device", "h200"), "--device: a time needs all sizes; put them in, as in --at n=8,t=8"),
        (("--dtype", "bfloat16"), "--dtype is that of a device's bound; name one, as in --device"),
    ],
)
def test_a_wrong_option_is_one_sentence(words, sentence, capsys):
    code, _, err = run(capsys, "cost", "models.py:scores", *words)
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("targets")
def test_a_device_bounds_a_target_from_the_command_line(capsys):
    words = ("cost", "models.py:linear", "--at", "n=2,t=50", "--device", "a100")
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert "on a100 in float32" in out
    assert "NVIDIA's data sheet A100 80GB" in out
    time = json.loads(run(capsys, *words, "--json")[1])["time"]
    assert time["modules"][""]["forward"] == pytest.approx(2 * 4 * (3600 + 180) / 2.039e12)
