"""The texts and checks that every room shares."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

import querykey as qk
from querykey.errors import QuerykeyError
from querykey.show import write_file
from querykey.words import (
    and_more,
    check_fields,
    checked,
    last_line,
    plural,
    room_for,
    seed_number,
    share,
    suggest,
    whole,
)


def test_a_count_agrees_with_its_noun():
    assert [plural(n, "row") for n in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]
    assert [plural(n, "matrix", "matrices") for n in (1, 3)] == ["1 matrix", "3 matrices"]
    assert [f"a{and_more(n, 'row')}" for n in (0, 1, 2)] == [
        "a",
        "a and 1 more row",
        "a and 2 more rows",
    ]
    assert and_more(2, "matrix", "matrices") == " and 2 more matrices"
    assert and_more(1, "matrix", "matrices") == " and 1 more matrix"


def test_the_nearest_word_is_suggested_and_no_far_one():
    assert suggest("spda", ["flex", "sdpa"]) == "; did you mean `sdpa`?"
    assert suggest("nothing", ["flex", "sdpa"]) == ""
    assert suggest("LLaMA", ["llama", "lamb"]) == "; did you mean `llama`?"
    assert suggest("T5", ["T5", "T4"]) == ""  # what is there already is no better name


def test_an_exception_is_one_line_of_bounded_length():
    assert last_line(KeyError()) == "KeyError"
    assert last_line(ValueError("two\n  lines")) == "ValueError: two lines"
    assert last_line(ValueError("two lines"), 3) == "ValueError: two"


@pytest.mark.parametrize("value", [3, np.int64(3), torch.tensor(3)])
def test_whole_numbers_of_every_library_are_taken(value):
    number = whole("size", value)
    assert number == 3
    assert type(number) is int


@pytest.mark.parametrize("value", [True, 3.0, "3", None])
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(TypeError, match=r"^size is a whole number; got "):
        whole("size", value)


def test_whole_numbers_have_a_least():
    assert whole("size", 0, least=0) == 0
    with pytest.raises(ValueError, match=r"^size is at least 1; got 0$"):
        whole("size", 0)


def test_a_share_leaves_something():
    assert share("dropout", 0) == 0
    for value in (1, -0.1, True, "0.5", float("nan")):
        with pytest.raises(ValueError, match=r"^dropout is a share, from 0 to below 1; got "):
            share("dropout", value)


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    write_file(tmp_path / "page.html", "a \udcff")
    assert (tmp_path / "page.html").read_text() == "a \\udcff"
    with pytest.raises(QuerykeyError, match=r"none/page.html` cannot be written: No such file"):
        write_file(tmp_path / "none" / "page.html", "a")


def test_no_room_in_memory_is_said_and_other_errors_pass():
    words = r"^there is no memory for a table of 2\^60 rows$"
    with pytest.raises(QuerykeyError, match=words), room_for("a table of 2^60 rows"):
        torch.empty(2**60)
    with pytest.raises(QuerykeyError, match="there is no memory for a list"), room_for("a list"):
        raise MemoryError
    for other in (RuntimeError("no such operator"), torch.OutOfMemoryError("CUDA out of memory")):
        with pytest.raises(type(other), match=str(other)), room_for("a table"):
            raise other


@dataclass(frozen=True)
class Spec:
    name: str
    size: int = 1
    share: float | None = None
    kind: Literal["a", "b"] = "a"
    pair: tuple[int, str] = (1, "x")
    numbers: Sequence[float] = ()
    table: Mapping[str, list[int]] = field(default_factory=dict)
    function: Callable[[int], int] = abs
    anything: Any = None
    root: Path | None = None

    def __post_init__(self):
        check_fields(self)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("name", ["", "a"], [None, 3, b"a", ["a"]]),
        ("size", [0, -3, np.int64(2)], [True, 1.0, "1", None]),
        ("share", [None, 1, 0.5, np.float32(0.5)], [False, "0.5", 1j]),
        ("kind", ["b"], ["c", None, ["a"]]),
        ("pair", [(2, "y")], [(2,), ("y", 2), [2, "y"], (2, "y", 3)]),
        ("numbers", [[], [1.0, 2], (0.5,)], ["12", b"12", [None], {1.0}, 3]),
        ("table", [{"a": [1]}], [{"a": 1}, {1: [1]}, {"a": ["b"]}, [("a", [1])]]),
        ("function", [print, str], [3, "print", None]),
        ("anything", [3, None, "a"], []),
        ("root", [None, Path("a")], ["a", 3]),
    ],
)
def test_fields_are_of_the_types_that_are_annotated(name, good, bad):
    rest = {"name": "a"}
    for value in good:
        assert getattr(Spec(**(rest | {name: value})), name) is value
    for value in bad:
        with pytest.raises(TypeError, match=f"^`{name}` of Spec is .*; got "):
            Spec(**(rest | {name: value}))


def test_arguments_are_of_the_types_that_are_annotated():
    @checked
    def half(count: int, names: Iterable[str] = ()) -> list[str]:
        return list(names)[: count // 2]

    assert half(2, names=iter(["a", "b"])) == ["a"]  # what would be used up is not looked into
    with pytest.raises(TypeError, match=r"^`count` of half is int; got 2\.5$"):
        half(2.5)
    with pytest.raises(TypeError, match=r"^`names` of half is Iterable\[str\]; got 'ab'$"):
        half(2, "ab")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'count'"):
        half()


def test_a_seed_is_one_that_every_library_takes():
    assert seed_number(np.int64(3)) == 3
    for seed, words in ((-1, "seed is at least 0; got -1"), (2**32, "seed is below 2^32; got 42")):
        with pytest.raises(QuerykeyError, match=re.escape(words)):
            seed_number(seed)
        with pytest.raises(QuerykeyError, match=re.escape(words)):
            qk.check(torch.nn.Linear(3, 2), seed=seed)
        with pytest.raises(QuerykeyError, match=re.escape(words)):
            qk.targets.build("gpt", seed)


def test_the_largest_size_is_whole_and_the_next_is_refused():
    assert whole("n", 2**62) == 2**62
    with pytest.raises(QuerykeyError, match=r"n is at most 2\^62; got 4611686018427387905"):
        whole("n", 2**62 + 1)
