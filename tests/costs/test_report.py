"""What a report can be asked, and how a wrong call is answered."""

import json

import numpy as np
import pytest
import sympy
import torch
from torch import nn

import querykey as qk
from querykey import cli
from querykey.errors import WrongTypeError


@pytest.fixture(scope="module")
def report():
    model = nn.Sequential(
        nn.Embedding(11, 8),
        nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True),
        nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True),
    )
    return qk.cost(model, qk.tokens("batch", "seq"), attention="math")


def test_sizes_are_put_in_some_or_all(report):
    half = report.at(batch=3)
    assert list(half.symbols) == ["seq"]
    whole = half.at(seq=7)
    assert isinstance(whole.flops.forward, int)
    assert whole.flops.forward == report.at(batch=3, seq=7).flops.forward
    substituted = report.flops.forward.subs({report.symbols["batch"]: 3, "seq": 7})
    assert substituted == whole.flops.forward
    assert report["flops.forward"] == report.flops.forward


def test_whole_numbers_of_other_libraries_are_sizes(report):
    at = report.at(batch=np.int64(3), seq=np.int32(7))
    assert at.flops.forward == report.at(batch=3, seq=7).flops.forward
    assert json.loads(at.to_json())["at"] == {"batch": 3, "seq": 7}
    linear, inputs = nn.Linear(6, 6), qk.array("n", 6)
    assert str(qk.cost(linear, inputs, near={"n": np.int64(9)}).flops.forward) == "72*n"
    assert str(qk.cost(linear, inputs, sizes={"n": np.int64(3)}).valid) == "n % 3 == 0"


def test_plain_symbols_of_sympy_are_the_same_symbols(report):
    batch, seq = sympy.symbols("batch seq")
    assert report.flops.forward == 64 * batch * seq**2 + 1792 * batch * seq


def test_orders(report):
    assert str(report.order("flops.forward")) == "O(batch seq^2)"
    assert str(report.order("params")) == "O(1)"
    assert str(report.order("flops.forward", given={"seq": 1024})) == "O(batch) where seq = 1024"
    assert report.order("saved_bytes").theta == "Theta(batch seq^2)"


@pytest.mark.parametrize(
    ("formula", "given", "said"),
    [
        ("6*n*C*d**2 + 4*n*C**2*d + 4*n*C*d*h", None, "O(n C d^2 + n C^2 d + n C d h)"),
        ("n*h**2*k**2 + n*n*h*k + k", {"d": "h*k"}, "O(n d^2 + n^2 d) where d = h*k"),
        ("n*h + n*d", {"h": "4*d"}, "O(n d) where h = 4*d"),
        ("n*floor(d/8)**2 + 7", None, "O(n d^2)"),
        ("n*Min(d, 16)", None, "O(n)"),
        ("Max(4*n*d, 7*n + d**2 - 12, 5*n*d + 3)", None, "O(d^2 + n d)"),
        ("4*n*d + 3*n*h", {"d": "<= 2*h*C"}, "O(n C h) where d <= 2*h*C"),
    ],
)
def test_orders_of_formulas(formula, given, said):
    from querykey.costs.formulas.order import order_of

    names = ["n", "C", "d", "h", "k"]
    value = sympy.sympify(formula, locals={name: sympy.Symbol(name) for name in names})
    assert str(order_of(value, names, given)).replace("k + ", "").replace(" + k", "") == said


def test_a_bound_needs_a_formula_that_grows():
    from querykey.costs.formulas.order import order_of

    n, d = sympy.symbols("n d")
    with pytest.raises(qk.CostError, match="`d <= n`: the formula has terms that fall as sizes"):
        order_of(n**2 - 3 * d, ["n", "d"], {"d": "<= n"})
    with pytest.raises(qk.CostError, match="a leading coefficient is negative"):
        _ = order_of(n - d, ["n", "d"]).theta


def test_a_relation_names_sizes_that_are_there(report):
    with pytest.raises(qk.CostError, match="`d = h\\*k`: there is no size `h`"):
        report.order("flops.forward", given={"d": "h*k"})


def test_where_two_models_cross():
    narrow = qk.cost(nn.Linear(6, 6), qk.array("n", "t", 6))

    class Scores(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return (x * self.weight) @ x.mT

    square = qk.cost(Scores(), qk.array("n", "t", 6))
    found = narrow.compare(square, "t")
    assert found.crossings == (6,)
    assert narrow.compare(square) == found  # n is a factor of both
    with pytest.raises(qk.CostError, match="no size decides which costs more"):
        narrow.compare(narrow)
    assert "they cost the same at t = 6" in str(found)
    assert "do not cross" in str(
        narrow.compare(qk.cost(nn.Linear(6, 7), qk.array("n", "t", 6)), "t")
    )
    assert "the same at every size" in str(narrow.compare(narrow, "t"))


@pytest.mark.parametrize(
    ("difference", "wanted"),
    [
        ("t**3 - 6*t**2 + 11*t - 6", ["1", "2", "3"]),
        ("n*t**3 - 3*n*t**2 + 3*n*t - 28*n", ["4"]),  # beside two that are not real
        ("t**3 - t - 3", ["1.67169988165716"]),
        ("t**3 + t + 1", []),
        ("t**4 - 2*t**3", ["2"]),
        ("t**2 - 2", ["sqrt(2)"]),
        ("t**2 + n*t", []),
        ("t**2 - n*t", ["n"]),
        ("t**2 + n", []),
    ],
)
def test_crossings_are_real_and_positive(difference, wanted):
    from querykey.costs.formulas.comparison import crossings

    found = crossings(sympy.sympify(difference), 0, "t", "flops.forward")
    assert [str(each) for each in found.crossings] == wanted
    assert "I" not in str(found)


def test_a_cubic_in_several_sizes_is_not_solved():
    from querykey.costs.formulas.comparison import crossings

    with pytest.raises(
        qk.CostError, match="has powers of `t` up to 3 beside other sizes"
    ) as caught:
        crossings(sympy.sympify("t**3 - n*t - 1"), 0, "t", "flops.forward")
    assert "put the others in" in str(caught.value)


def test_json_has_formulas_as_text_and_numbers_as_numbers(report):
    found = json.loads(report.to_json())
    assert found["schema"] == 1
    assert found["sizes"] == ["batch", "seq"]
    assert found["flops.forward"] == "64*batch*seq**2 + 1792*batch*seq"
    assert found["params"] == report.params
    assert found["modules"]["1.linear1"]["flops.forward"] == "192*batch*seq"
    assert found["peak_bytes"].startswith("Max(")
    assert found["bytes_moved"] == "176*batch*seq**2 + 9584*batch*seq + 12704"
    at = json.loads(report.at(batch=3, seq=7).to_json())
    assert at["flops.forward"] == 64 * 3 * 49 + 1792 * 21
    assert at["at"] == {"batch": 3, "seq": 7}


def test_repeated_layers_share_a_row(report):
    text = str(report)
    assert "  1-2 (2 times)" in text
    assert "    self_attn (2 times)" in text
    assert "64 batch seq (seq + 28)" in text


def test_what_has_no_formula_says_so(report):
    assert str(report.state_bytes).startswith("only the phases prefill and decode have a state")
    with pytest.raises(qk.CostError, match="`state_bytes`: only the phases prefill and decode"):
        report.order("state_bytes")
    assert "not computed" not in report.to_json()


def small(n):
    return nn.Linear(n, n)


def needs_data(table):
    return nn.Embedding.from_pretrained(table)


def heads(width, count):
    return nn.MultiheadAttention(width, count)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda r: r.at(sq=3),
            "there is no size `sq`; did you mean `seq`? (the sizes: batch, seq)",
        ),
        (lambda r: r.at(seq=0), "`seq` is a whole number of at least 1, not 0"),
        (
            lambda r: r["flops.sideways"],
            "there is no `flops.sideways` in the report; there are flops.forward",
        ),
        (
            lambda r: qk.cost(needs_data, qk.tokens("n")),
            "the builder refused table=5: AttributeError: 'int' object has no attribute",
        ),
        (
            lambda r: qk.cost(heads, qk.array("n"), sizes={"width": 7, "count": [2, 3, 4, 5]}),
            "the builder refused width=7, count=2: AssertionError: embed_dim must be divisible",
        ),
        (lambda r: qk.cost(lambda n: 3, qk.array("n")), "the builder returned an int; it returns"),
        (
            lambda r: qk.cost(3, qk.array("n")),
            "`model` of cost is nn.Module | Callable[..., nn.Module]; got 3",
        ),
        (
            lambda r: qk.cost(nn.Linear(6, 2), qk.array("n", "d")),
            "the model does not run with n=",
        ),
        (
            lambda r: qk.cost(small, qk.array("n"), attention="flsh"),
            "attention is one of flash, math, not `flsh`; did you mean `flash`?",
        ),
        (
            lambda r: qk.cost(small, qk.array("n"), phase="decoding"),
            "phase is one of train, prefill, decode, not `decoding`; did you mean `decode`?",
        ),
        (lambda r: qk.cost(small, qk.array("n"), near={"m": 3}), "there is no size `m`"),
        *(
            (
                lambda r, near=near: qk.cost(nn.Linear(6, 6), qk.array("n", 6), near={"n": near}),
                f"`n` is a whole number of at least 2, not {near!r}",
            )
            for near in (1, 0, -3)
        ),
        *(
            (
                lambda r, near=near: qk.cost(nn.Linear(6, 6), qk.array("n", 6), near={"n": near}),
                f"`near` of cost is Mapping[str, int] | None; got {{'n': {near!r}}}",
            )
            for near in ("a", 2.0, True)
        ),
        *(
            (
                lambda r, said=said: qk.cost(nn.Linear(6, 6), qk.array("n", 6), sizes={"n": said}),
                f"`n` is a whole number of at least 1, not {wrong!r}",
            )
            for said, wrong in ((0, 0), (-2, -2))
        ),
        *(
            (
                lambda r, said=said: qk.cost(nn.Linear(6, 6), qk.array("n", 6), sizes={"n": said}),
                "`sizes` of cost is Mapping[str, int | Sequence[int]] | None; "
                f"got {{'n': {said!r}}}",
            )
            for said in ("a", 2.5, [1, 2, "a", 4])
        ),
        (
            lambda r: qk.cost(nn.Linear(6, 6), qk.array("n", 6), sizes={"n": [2, 2, 2, 2]}),
            "`n` needs at least 4 values to choose from",
        ),
        *(
            (
                lambda r, given=given: r.order(given={"batch": given}),
                f"`batch = {given}` relates no sizes; write a product of them, as in d = h*k",
            )
            for given in ("seq+", "seq)", "", "seq seq", "seq.x", None)
        ),
        (lambda r: r.order(given={"t+": "seq"}), "`t+ = seq` relates no sizes"),
        (lambda r: r.order(given={"seq": "<= x"}), "`seq <= x`: there is no size `x`"),
        (lambda r: r.order(given={"seq": "<= 9"}).theta, "`seq` has a bound and no value, so only"),
        (lambda r: r.order(serial=["seq"]), "sums are serial or trees in `span` alone, not in"),
        (lambda r: r.at(seq=2.0), "`seq` is a whole number of at least 1, not 2.0"),
        (lambda r: qk.images("n", 3), "images have 4 axes (batch, channels, height, width), not 2"),
        (lambda r: qk.array("n", 0), "an axis is a name or a size of at least 1, not 0"),
    ],
)
def test_a_wrong_call_is_one_sentence(report, call, sentence):
    with pytest.raises((qk.CostError, WrongTypeError)) as caught:
        call(report)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_builder_may_need_sizes_that_divide():
    class Attention(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.inner = nn.MultiheadAttention(width, heads, batch_first=True)

        def forward(self, x):
            return self.inner(x, x, x)[0]

    report = qk.cost(Attention, qk.array("n", "t", "width"), attention="math")
    assert str(report.params) == "4*width**2 + 4*width"
    assert "heads" in {s.name for s in report.saved_bytes.free_symbols}


def run(capsys, *words):
    code = cli.run(words)
    out, err = capsys.readouterr()
    return code, out, err


def small_target(folder):
    (folder / "small.py").write_text("""
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Embedding(40, 16), nn.Linear(16, 40))

    def forward(self, ids):
        return self.inner(ids)
""")
    return f"{folder}/small.py:Model"


@pytest.mark.slow
def test_the_command_prints_a_table_json_or_a_page(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, out, err = run(capsys, "cost", "encoder", "--at", "batch=8,seq=16")
    assert (code, err) == (0, "")
    assert "FLOPs forward" in out
    assert "    layers.0-1 (2 times)" in out
    target = small_target(tmp_path)
    code, out, _ = run(capsys, "cost", target, "--input", "ids=tokens(n,t)", "--json")
    assert json.loads(out)["sizes"] == ["n", "t"]
    file = tmp_path / "cost.html"
    assert run(capsys, "cost", target, "--html", str(file))[0] == 0
    assert f"What {target} costs" in file.read_text()


def talking_target(folder, extra=""):
    (folder / "talking.py").write_text(f"""
import sys
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        print("made")
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        print("runs")
        {extra}
        return self.inner(x)

def make():
    print("makes")
    return Model()
""")
    return f"{folder}/talking.py:make"


def test_the_command_costs_a_model_without_a_backward_pass(capsys, tmp_path):
    (tmp_path / "model.py").write_text(
        "import torch\n"
        "class Told(torch.nn.Linear):\n"
        "    @torch.inference_mode()\n"
        "    def forward(self, x): return super().forward(x)\n"
        "def make(): return Told(6, 5)\n"
    )
    name = f"{tmp_path / 'model.py'}:make"
    code, out, _ = run(capsys, "cost", name, "--input", "array(n,6)", "--json")
    assert code == 0
    told = json.loads(out)
    assert told["flops.forward"] == "60*n"
    assert told["flops.backward"] == told["saved_bytes"] == 0
    assert "there is no backward pass: no trainable weight reaches the output" in told["notes"]


def test_what_a_model_prints_does_not_get_into_the_json(capsys, tmp_path):
    words = ("--input", "x=array(n,6)", "--json")
    code, out, err = run(capsys, "cost", talking_target(tmp_path), *words)
    assert code == 0
    assert json.loads(out)["flops.forward"] == "72*n"
    assert {"makes", "made", "runs"} <= {*err.split()}


@pytest.mark.parametrize(("leave", "code_said"), [("sys.exit(3)", ": 3"), ("raise SystemExit", "")])
def test_a_model_that_leaves_is_told_in_one_sentence(capsys, tmp_path, leave, code_said):
    code, out, err = run(capsys, "cost", talking_target(tmp_path, leave), "--input", "x=array(n,6)")
    assert (code, out) == (2, "")
    said = [line for line in err.splitlines() if line.startswith("qk: ")]
    assert len(said) == 1
    assert f"the model does not run with n=3 (SystemExit{code_said})" in said[0]


def test_a_model_that_leaves_in_a_pass_is_told_in_one_sentence():
    class Leaving(nn.Linear):
        def forward(self, x):
            raise SystemExit(3)

    with pytest.raises(qk.CostError, match=r"does not run with n=. \(SystemExit: 3\)"):
        qk.cost(Leaving(6, 6), qk.array("n", 6))


def test_a_builder_that_leaves_is_told_in_one_sentence():
    def build(width):
        raise SystemExit(3)

    with pytest.raises(qk.CostError, match=r"the builder refused width=.: SystemExit: 3"):
        qk.cost(build, qk.array("n", "width"))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--at", "seq=²"], "`seq=²` is no size; write NAME=NUMBER"),
        (["--input", "ids=tokens(batch,²)"], "an axis is a name or a size, not `²`"),
        (["--at", "batch=8,sq=3"], "there is no size `sq`; did you mean `seq`?"),
        (["--at", "seq=1" + 200 * "0"], "--at: `seq` has 201 digits; write at most 18"),
        (["--at", "seq=" + 5000 * "9"], "--at: `seq` has 5000 digits; write at most 18"),
        (["--at", "seq=8, seq=9"], "--at gives `seq` twice; write each size once"),
        (["--at", "8"], "`8` is no size; write NAME=NUMBER, as in --at batch=8,seq=1024"),
        (["--input", "toks(a)"], "`toks(a)` is no input; write NAME=KIND(AXIS, ...)"),
        (["--attention", "fast"], "attention is one of flash, math, not `fast`"),
    ],
)
def test_a_wrong_command_is_one_sentence_and_exit_code_2(capsys, tmp_path, words, sentence):
    code, out, err = run(capsys, "cost", small_target(tmp_path), *words)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_sizes_that_a_target_cannot_have_are_told_without_advice_for_python(capsys, tmp_path):
    (tmp_path / "short.py").write_text("""
import torch
from torch import nn

class Short(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(40, 16), nn.Embedding(32, 16)

    def forward(self, ids):
        return self.words(ids) * self.places(torch.arange(ids.shape[1]))
""")
    said = run(capsys, "cost", f"{tmp_path}/short.py:Short", "--at", "seq=100")
    why = "is outside the range of this formula (seq <= 32), and the model has none there"
    assert said == (2, "", f"qk: seq=100 {why}\n")


def test_no_crossing_is_told_where_a_formula_does_not_hold():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.Linear(6, 60)

        def forward(self, x):
            return self.map(x[:, :20] if x.size(1) > 20 else x)

    few = qk.cost(Last(), qk.array("n", "t", 6), near={"t": 100})
    full = qk.cost(nn.Linear(6, 120), qk.array("n", "t", 6))
    assert str(few.valid) == "t >= 21"
    assert few.compare(full, "t").crossings == ()  # at t = 10 the first is another formula
    assert few.compare(qk.cost(nn.Linear(6, 20), qk.array("n", "t", 6)), "t").crossings == (60,)


@pytest.mark.parametrize("loss", [lambda out: out[0], lambda out: out.sum().item(), lambda out: 1])
def test_a_loss_that_is_no_single_tensor_is_refused(loss):
    with pytest.raises(qk.CostError, match="the loss must be one number"):
        qk.cost(nn.Linear(3, 4), torch.zeros(2, 3), loss=loss)


def test_positions_that_a_model_must_be_told_are_no_size_of_their_own(capsys, tmp_path):
    file = tmp_path / "placed.py"
    file.write_text(
        "from torch import nn\n"
        "class Placed(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.words, self.places = nn.Embedding(40, 6), nn.Embedding(9, 6)\n"
        "        self.out = nn.Linear(6, 40)\n"
        "    def forward(self, idx, input_pos):\n"
        "        assert input_pos.dim() == 1\n"
        "        return self.out(self.words(idx) + self.places(input_pos))\n"
    )
    code, out, _ = run(capsys, "cost", f"{file}:Placed", "--json")
    assert code == 0
    assert json.loads(out)["flops.forward"] == "480*batch*seq"
