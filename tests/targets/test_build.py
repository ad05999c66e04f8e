"""What a name stands for, what the model takes, and the text of every refusal."""

import json
import textwrap

import pytest
import torch
from torch import nn

from querykey.targets import PRESETS, TargetError, build, find_inputs
from querykey.targets.target import WHAT


def refusal(name):
    with pytest.raises(TargetError) as caught:
        build(str(name))
    return str(caught.value)


@pytest.fixture
def file(tmp_path):
    def write(code):
        path = tmp_path / "model.py"
        path.write_text(textwrap.dedent(code))
        return path

    return write


@pytest.mark.parametrize("name", PRESETS)
def test_presets_run_on_their_own_examples(name):
    target = build(name)
    assert target.kind == "preset"
    assert len(target.run(target.example(batch=3, length=5))) == 3


def test_the_decoder_preset_is_causal_and_the_encoder_is_not():
    for name, causal in (("decoder", True), ("encoder", False)):
        target = build(name)
        target.model.eval()
        ids = target.example(batch=1, length=6)["ids"]
        changed = ids.clone()
        changed[:, -1] = (changed[:, -1] + 1) % 128
        first, second = target.run({"ids": ids}), target.run({"ids": changed})
        assert torch.equal(first[:, :-1], second[:, :-1]) is causal
        assert not torch.equal(first[:, -1], second[:, -1])


def test_a_factory_in_a_file_that_imports_its_neighbour(file, tmp_path):
    (tmp_path / "neighbour.py").write_text("width = 12")
    path = file("""
        from torch import nn
        from neighbour import width
        def make():
            return nn.Sequential(nn.Embedding(31, width), nn.Linear(width, 5))
    """)
    target = build(f"{path}:make")
    assert target.kind == "python"
    assert str(target.inputs[0]) == "(batch, seq) token ids 0 to 30"
    assert target.run(target.example(batch=2, length=3)).shape == (2, 3, 5)


def test_two_folders_each_have_a_neighbour_of_the_same_name(tmp_path):
    for name, width in (("a", 3), ("b", 5)):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "same_name.py").write_text("from inner.width import width")
        (tmp_path / name / "inner" / "width.py").write_text(f"width = {width}")
        (tmp_path / name / "model.py").write_text(
            "from torch.nn import Linear\nfrom same_name import width\n"
            "def make(): return Linear(width, 1)"
        )
    for name, width in (("a", 3), ("b", 5), ("a", 3)):
        assert build(f"{tmp_path / name / 'model.py'}:make").model.in_features == width


def test_a_neighbour_may_be_imported_while_the_model_is_made_and_run(file, tmp_path):
    (tmp_path / "late_width.py").write_text("width = 12")
    (tmp_path / "late_shift.py").write_text("shift = 1")
    path = file("""
        import torch
        class Late(torch.nn.Linear):
            def forward(self, x):
                from late_shift import shift
                return super().forward(x) + shift
        def make():
            from late_width import width
            return Late(width, 5)
    """)
    target = build(f"{path}:make")
    assert target.run(target.example()).shape == (2, 7, 5)


def test_a_model_that_its_file_has_built_is_taken_as_it_is(file):
    path = file(
        "from torch import nn\nmodel = nn.Sequential(nn.Embedding(30, 8), nn.Linear(8, 30))"
    )
    target = build(f"{path}:model")
    assert isinstance(target.model, nn.Sequential)
    assert target.run(target.example(batch=3, length=5)).shape == (3, 5, 30)


def test_a_file_with_relative_imports_is_to_be_named_by_its_package(tmp_path):
    (tmp_path / "model.py").write_text("from .part import make\n")
    sentence = refusal(f"{tmp_path}/model.py:make")
    assert "attempted relative import" in sentence
    assert sentence.endswith("; install its package, and name it package.module:factory")


def test_a_factory_in_a_package():
    target = build("querykey.targets.presets:encoder")
    assert target.run(target.example()).shape == (2, 7, 128)


def test_the_same_seed_draws_the_same_example():
    target = build("encoder")
    first, again, other = (target.example(seed=seed)["ids"] for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


class Twin(nn.Module):
    """Weights without layers, two required arguments and one optional."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(11, 3))

    def forward(self, left, right, scale=1.0):
        return (left @ self.weight + right @ self.weight) * scale


class Untold(nn.Module):
    def forward(self, *anything):
        return anything


class PositionsInside(nn.Module):
    """Token ids with the batch first around attention with positions first."""

    def __init__(self, sees):
        super().__init__()
        self.table, self.mix = nn.Embedding(31, 12), nn.MultiheadAttention(12, 3)
        self.sees = sees  # where a pair of positions is visible

    def forward(self, ids):
        x = self.table(ids).transpose(0, 1)
        hidden = ~self.sees(torch.ones(len(x), len(x), dtype=torch.bool))
        return {"scores": (x + self.mix(x, x, x, attn_mask=hidden)[0]).transpose(0, 1)}


class FirstIsFixed(PositionsInside):
    """The same with scores of 0 at the first position."""

    def forward(self, ids):
        scores = super().forward(ids)["scores"]
        return torch.cat([0 * scores[:, :1], scores[:, 1:]], 1)


@pytest.mark.parametrize("sees", [torch.tril, torch.triu, lambda pairs: pairs])
def test_the_batch_is_found_by_changing_a_row_where_a_layer_takes_positions_first(sees):
    inputs, _ = find_inputs(PositionsInside(sees))
    assert [each.axes for each in inputs] == [("batch", "seq")]
    inputs, _ = find_inputs(FirstIsFixed(sees))
    assert [each.axes for each in inputs] == [("batch", "seq")]
    outside = nn.Sequential(nn.Embedding(31, 12), nn.TransformerEncoderLayer(12, 3, 20))
    inputs, _ = find_inputs(outside)
    assert [each.axes for each in inputs] == [("seq", "batch")]


@pytest.mark.parametrize(
    ("model", "axes", "kind"),
    [
        (nn.Linear(13, 2), ("batch", "seq", 13), "features"),
        (nn.LSTM(13, 5, batch_first=True), ("batch", "seq", 13), "features"),
        (nn.LSTM(13, 5), ("seq", "batch", 13), "features"),
        (nn.MultiheadAttention(12, 3, batch_first=True), ("batch", "seq", 12), "features"),
        (nn.Sequential(nn.Flatten(), nn.LazyLinear(4)), None, None),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), ("batch", 3, 32, 32), "image"),
        (
            nn.Sequential(nn.Conv2d(1, 2, 8, 8), nn.Flatten(), nn.Linear(2 * 28 * 28, 2)),
            ("batch", 1, 224, 224),
            "image",
        ),
        (nn.Conv1d(5, 4, 3), ("batch", 5, "seq"), "signal"),
        (Twin(), ("batch", "seq", 11), "features"),
        (Untold(), None, None),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_inputs_are_found_by_trying(model, axes, kind):
    inputs, note = find_inputs(model)
    if axes is None:
        assert inputs == ()
        assert "say" in note
    else:
        assert {each.axes for each in inputs} == {axes}
        assert {each.kind for each in inputs} == {kind}


def test_why_the_likeliest_guess_did_not_run_is_told():
    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = nn.Embedding(31, 12), nn.Linear(12, 5)

        def forward(self, ids):
            x = self.table(ids)
            if x.size(1) != 64:
                raise ValueError("64 tokens, no more and no fewer")
            return self.out(x)

    why = "ValueError: 64 tokens, no more and no fewer"
    place = f"tests/targets/test_build.py:{Fixed.forward.__code__.co_firstlineno + 3}"
    assert find_inputs(Fixed()) == (
        (),
        f"none of 3 guesses ran (the first: {why} ({place}, forward)); say what it takes",
    )


def test_the_one_length_of_a_table_is_tried_at_last():
    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out = nn.Embedding(31, 12), nn.Linear(12, 5)
            self.register_buffer("seen", torch.ones(19, 19).tril())

        def forward(self, ids):
            return self.out(self.seen @ self.table(ids))

    inputs, _ = find_inputs(Fixed())
    assert [(entry.kind, entry.axes) for entry in inputs] == [("tokens", ("batch", 19))]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # importing torch's compiler warns
def test_a_compiled_model_is_seen_through():
    inputs, _ = find_inputs(torch.compile(nn.Linear(13, 2)))
    assert [each.axes for each in inputs] == [("batch", "seq", 13)]


def test_trying_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    model[2].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    inputs, _ = find_inputs(model)
    assert inputs[0].axes == ("batch", 4)
    assert [m.training for m in model] == [True, True, False]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_refusals_of_names(tmp_path):
    assert refusal("") == f"a target cannot be empty; it is {WHAT}"
    assert refusal("decodr") == (
        f"no preset is called `decodr`; did you mean `decoder`? (a target is {WHAT})"
    )
    assert refusal("zzz") == f"no preset is called `zzz` (a target is {WHAT})"
    assert refusal("model.py") == (
        "`model.py` names a file but no factory; write `model.py:FACTORY`"
    )
    assert refusal("./nowhere") == f"`./nowhere` is no folder; a target is {WHAT}"
    assert refusal("no_such_file.py:make") == (
        "`no_such_file.py:make`: there is no file `no_such_file.py`"
    )
    assert refusal("no_such_package:make") == (
        "`no_such_package:make`: importing `no_such_package` raised "
        "ModuleNotFoundError: No module named 'no_such_package'"
    )


def test_refusals_of_factories(file):
    path = file("""
        import sys
        number = 3
        def make(): raise KeyError("no such layer")
        def leave(): sys.exit(4)
        def text(): return "a model"
        def sized(width, depth=2): return None
    """)
    at = f"{path}"
    assert refusal(f"{at}:make") == (
        f"`{at}:make`: make() raised KeyError: 'no such layer' (model.py:4, make)"
    )
    assert (
        refusal(f"{at}:leave") == f"`{at}:leave`: leave() raised SystemExit: 4 (model.py:5, leave)"
    )
    assert refusal(f"{at}:text") == (
        f"`{at}:text`: text() returned a str; a factory returns a torch.nn.Module, "
        "or a querykey.Subject"
    )
    assert refusal(f"{at}:number") == (
        f"`{at}:number`: `number` is an int, not a callable that returns a torch.nn.Module"
    )
    assert refusal(f"{at}:maek") == f"`{at}:maek`: `{at}` has no `maek`; did you mean `make`?"
    assert refusal(f"{at}:other") == (
        f"`{at}:other`: `{at}` has no `other`; it defines `make`, `leave`, `text`, `sized`"
    )
    assert refusal(f"{at}:sized") == (
        f"`{at}:sized`: `sized` needs `width`; a factory takes no arguments "
        "(wrap it in a function that gives them)"
    )


def test_refusal_of_a_file_that_does_not_import(file):
    path = file("import torch\n1 / 0\n")
    assert refusal(f"{path}:make") == (
        f"`{path}:make`: importing `{path}` raised ZeroDivisionError: division by zero "
        "(model.py:2, <module>)"
    )


def test_refusals_of_folders(tmp_path):
    assert refusal(tmp_path) == f"folder `{tmp_path}` has no config.json"
    config = tmp_path / "config.json"
    config.write_text("{}")
    assert refusal(tmp_path) == f"`{config}` names no model_type"
    config.write_text('{"model_type": ')
    assert refusal(tmp_path).startswith(f"`{config}` is no JSON: JSONDecodeError: ")
    config.write_text(json.dumps({"model_type": "gpt2"}))
    (tmp_path / "pytorch_model.bin").write_bytes(b"never opened")
    assert refusal(tmp_path) == (
        f"folder `{tmp_path}` has no *.safetensors file (pickled weights are not read)"
    )


def test_a_number_per_row_beside_an_image_is_guessed():
    class Denoiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch, self.time = nn.Conv2d(3, 8, 8, 8), nn.Embedding(50, 8)

        def forward(self, x, t):
            return self.patch(x).flatten(2).mT + self.time(t)[:, None]

    inputs, why = find_inputs(Denoiser())
    assert why == ""
    assert [each.axes for each in inputs] == [("batch", 3, 32, 32), ("batch",)]


@pytest.mark.filterwarnings("ignore:.torch.jit.script. :DeprecationWarning")
def test_inputs_of_scripted_layers_are_those_of_the_layers():
    for layers in ([nn.Embedding(31, 12), nn.Linear(12, 3)], [nn.Linear(13, 3), nn.Linear(3, 2)]):
        plain = nn.Sequential(*layers)
        assert find_inputs(torch.jit.script(plain))[0] == find_inputs(plain)[0]


class Many(nn.Module):
    """Many arguments, all of them features, of which no guess is right."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(n, n + 1) for n in range(2, 14))

    def forward(self, feat_a, feat_b, feat_c, feat_d, feat_e, feat_f, feat_g, feat_h):
        raise ValueError("never right")


def test_guesses_of_many_arguments_come_to_an_end():
    inputs, why = find_inputs(Many())
    assert inputs == ()
    assert "never right" in why
