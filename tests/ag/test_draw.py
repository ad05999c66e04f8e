"""Drawings, gradcheck, kept pages, and the size of the core."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import querykey.ag as ag

SVG = "{http://www.w3.org/2000/svg}"


def graph():
    W = ag.Tensor(np.array([[1.0, 2.0], [3.0, 4.0]]), label='W "<1>"')
    hidden = ag.tanh(np.ones((3, 2)) @ W)
    hidden.label = "hidden"
    return W, ag.sum(hidden * hidden)


def words(drawing):
    return [t.text for t in ElementTree.fromstring(drawing.svg).iter(f"{SVG}text")]


def test_a_drawing_has_a_box_for_every_tensor_and_an_arrow_for_every_edge():
    _, loss = graph()
    drawing = ag.draw(loss)
    root = ElementTree.fromstring(drawing.svg)
    assert len(list(root.iter(f"{SVG}rect"))) == 5
    arrows = [p for p in root.iter(f"{SVG}path") if p.get("marker-end")]
    assert len(arrows) == drawing.dot.count("->") == 5
    text = words(drawing)
    assert text[::2] == ['W "<1>"', "matmul", "hidden", "multiply", "sum"]
    assert text[1::2][:3] == ["2×2 float64", "3×2 float64", "tanh · 3×2 float64"]
    assert str(drawing) == drawing.svg == drawing._repr_svg_()


def test_data_and_the_sum_below_a_line_are_drawn_too():
    X = ag.Tensor(np.ones((2, 3)), label="X", requires_grad=False)
    e = ag.exp(X @ ag.Tensor(np.eye(3), label="W"))
    drawing = ag.draw(ag.sum(e / ag.sum(e, axis=1, keepdims=True)))
    assert words(drawing)[::2] == ["X", "W", "matmul", "exp", "sum", "divide", "sum"]
    assert drawing.dot.count("->") == 7


def test_values_and_gradients_on_request():
    W, loss = graph()
    loss.backward(retain_graph=True)
    assert not any(w.startswith(("=", "∂")) for w in words(ag.draw(loss)))
    text = words(ag.draw(loss, values=True, gradients=True))
    assert "= 1 … 4" in text
    assert f"= {loss.item():.3g}" in text
    assert f"∂ {W.grad.min():.3g} … {W.grad.max():.3g}" in text
    assert sum(w.startswith("∂") for w in text) == 2  # the leaf and the label


def test_boxes_do_not_overlap_and_sources_stand_above():
    x = ag.Tensor(np.ones(2), label="x")
    parts = [ag.exp(x * float(i)) for i in range(5)]
    drawing = ag.draw(ag.sum(ag.stack(parts) * x))
    root = ElementTree.fromstring(drawing.svg)
    boxes = [(float(r.get("x")), float(r.get("y"))) for r in root.iter(f"{SVG}rect")]
    for i, (x1, y1) in enumerate(boxes):
        assert all(abs(x1 - x2) >= 150 or abs(y1 - y2) > 20 for x2, y2 in boxes[:i])
    for line in [p for p in root.iter(f"{SVG}path") if p.get("marker-end")]:
        start, end = line.get("d")[1:].split(" C")[0], line.get("d").split()[-1]
        assert float(start.split(",")[1]) < float(end.split(",")[1])


def test_a_drawing_is_saved_in_either_language(tmp_path):
    drawing = ag.draw(graph()[1])
    drawing.save(tmp_path / "a.svg")
    drawing.save(str(tmp_path / "a.dot"))
    assert (tmp_path / "a.svg").read_text(encoding="utf-8") == drawing.svg
    assert (tmp_path / "a.dot").read_text(encoding="utf-8").startswith("digraph ag {")
    assert 'label="W \\"<1>\\"\\n2×2 float64"' in drawing.dot


def test_what_cannot_be_drawn_says_so():
    _, loss = graph()
    loss.backward()
    with pytest.raises(RuntimeError, match="backward has already passed"):
        ag.draw(loss)
    y = ag.Tensor(1.0)
    for _ in range(1001):
        y = y + 1.0
    with pytest.raises(ValueError, match="1002 Tensors would make no picture"):
        ag.draw(y)
    assert "scalar" in ag.draw(ag.Tensor(1.0)).svg


def test_gradcheck_finds_a_wrong_derivative():
    def wrong(x):
        return ag.record("wrong", x.data**3, (x, lambda g: g * 2 * x.data))

    with pytest.raises(
        AssertionError, match=r"gradient of input 0, shape \(2,\), is wrong in 2 of 2"
    ):
        ag.gradcheck(wrong, np.array([1.0, 2.0]))


def test_gradcheck_finds_one_wrong_place_and_names_it():
    def wrong(x):
        slope = 3 * x.data**2
        slope[1, 0] += 1e-3
        return ag.record("wrong", x.data**3, (x, lambda g: g * slope))

    with pytest.raises(AssertionError, match=r"in 1 of 4 places; at \(1, 0\) backward says"):
        ag.gradcheck(wrong, np.ones((2, 2)))


def test_gradcheck_finds_a_missing_and_a_nan_gradient():
    with pytest.raises(AssertionError, match="backward says 0"):
        ag.gradcheck(lambda a, b: a * b.detach(), np.ones(2), np.ones(2))
    with pytest.raises(AssertionError, match="backward says nan"):
        ag.gradcheck(lambda a: ag.record("odd", a.data, (a, lambda g: g * np.nan)), np.ones(2))


def test_gradcheck_takes_integers_along_and_checks_in_float64():
    ids = np.array([0, 2, 2])
    assert ag.gradcheck(lambda t, i: t[i] ** 2, np.ones((3, 2), "float32"), ids) < 1e-6
    with pytest.raises(TypeError, match="returns a Tensor, not float"):
        ag.gradcheck(lambda a: 1.0, np.ones(2))


def test_pages_are_kept_on_request_and_only_then():
    code = (
        "import numpy as np, querykey.ag as ag, resource\n"
        "def faults(n):\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    for _ in range(n): np.ones((6 * 1024, 1024))\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before\n"
        "plain = faults(5)\n"
        "if ag.keep_pages():\n"
        "    faults(2)\n"
        "    kept = faults(5)\n"
        "    assert kept * 10 < plain, (kept, plain)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_readable_core_stays_small():
    folder = Path(ag.__file__).parent
    lines = [
        len((folder / f).read_text(encoding="utf-8").splitlines())
        for f in ("tensor.py", "primitives.py")
    ]
    assert sum(lines) <= 700


@pytest.mark.parametrize("label", ["\x1b[0m", "a\x00b", "\ud800", 7])
def test_any_label_makes_a_picture(label, tmp_path):
    drawing = ag.draw(ag.sum(ag.Tensor([1.0], label=label)))
    ElementTree.fromstring(drawing.svg)
    drawing.save(tmp_path / "graph.svg")


def test_what_an_earlier_walk_freed_is_drawn_as_far_as_it_goes():
    x = ag.Tensor([1.0, 2.0])
    e = ag.exp(x)
    total = ag.sum(e)
    share = e / total
    total.backward()
    assert "divide" in words(ag.draw(share))


def test_gradcheck_leaves_other_gradients_alone():
    x = ag.Tensor([1.0, 2.0], label="x")
    ag.gradcheck(lambda w: x * w, [1.0, 2.0])
    assert x.grad is None
