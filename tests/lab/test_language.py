"""Pairs of sentences have the right label, by rules that are written here once more."""

import ast
from itertools import pairwise

import pytest

from querykey.lab import Depth
from querykey.lab.experiments import pretraining
from querykey.lab.language import PRINTED, SentencePair, grammar_pairs, halves
from querykey.lab.prose import docstrings, library, prose_pairs, sentences

PEOPLE = {"boy", "girl", "farmer", "doctor", "baker", "singer",
          "john", "mary", "anna", "paul", "kate", "peter"}  # fmt: skip
GAINED = {"bought", "found", "received", "won", "inherited"}
MOVED = {"ran", "walked", "danced", "jumped", "swam", "crawled", "rode", "flew"}
THINGS = {"laptop", "book", "lamp", "chair", "coat", "boat", "drum", "clock", "knife", "ring"}


def people_in(text: str) -> list[str]:
    return [word for word in text.split() if word in PEOPLE]


def inverted(text: str) -> str:
    """`the boy ran quickly to john` as `quickly ran the boy to john`."""
    words = text.split()
    place = next(i for i, word in enumerate(words) if word in MOVED)
    return " ".join([words[place + 1], words[place], *words[:place], *words[place + 2 :]])


def follows(first: str, second: str) -> bool:
    """Who gained this very thing has it; who lost it has it not."""
    *who, verb, _, look, thing = first.split()
    article = "a" if verb in GAINED else "no"
    return second.split() == [*who, "has", article, look, thing]


@pytest.mark.parametrize("held", [False, True])
def test_labels_of_inverted_and_entailed_sentences_are_right(held):
    for pair in grammar_pairs("inverted", 3, 500, held):
        assert (inverted(pair.first) == pair.second) == pair.label
    for pair in grammar_pairs("entailed", 3, 500, held):
        assert follows(pair.first, pair.second) == pair.label


def test_wrong_pairs_cannot_be_told_by_a_word_of_the_second_sentence():
    for task in ("inverted", "entailed"):
        pairs = grammar_pairs(task, 0, 6000, False)
        for word in ("has", "no", "a", "quickly", "swam", "to", "john", "laptop"):
            labels = [pair.label for pair in pairs if word in pair.second.split()]
            assert not labels or abs(sum(labels) / len(labels) - 0.5) < 0.1


def test_adjacent_sentences_are_about_two_people_and_one_thing():
    pairs = grammar_pairs("adjacent", 5, 400, False)
    alike = {0: 0, 1: 0}
    for pair in pairs:
        words = {*pair.first.split(), *pair.second.split()}
        alike[pair.label] += len(words & PEOPLE) <= 2 and len(words & THINGS) <= 1
    labels = [pair.label for pair in pairs]
    assert 150 < sum(labels) < 250
    assert alike[1] == sum(labels)
    assert alike[0] < 0.3 * (400 - sum(labels))


@pytest.mark.parametrize("task", ["adjacent", "inverted", "entailed"])
def test_what_is_held_out_is_never_trained_with(task):
    trained = {pair.text for pair in grammar_pairs(task, 1, 5000, False)}
    held = grammar_pairs(task, 1, 600, True)
    assert len({pair.text for pair in held}) == len(held) == 600
    assert sum(pair.label for pair in held) == 300
    assert trained.isdisjoint(pair.text for pair in held)
    assert trained.isdisjoint(pair.text for pairs in PRINTED.values() for pair in pairs)


def test_pairs_follow_from_their_seed():
    assert grammar_pairs("inverted", 1, 50, False) == grammar_pairs("inverted", 1, 50, False)
    assert grammar_pairs("inverted", 1, 50, False) != grammar_pairs("inverted", 2, 50, False)


def test_the_printed_pairs_have_the_right_labels():
    for pair in PRINTED["inverted"]:
        assert (inverted(pair.first) == pair.second) == pair.label
    for pair in PRINTED["entailed"]:
        assert follows(pair.first, pair.second) == pair.label


def test_halves_are_as_large_as_the_rarer_label_allows():
    pairs = [SentencePair(str(i), "", int(i % 4 == 0)) for i in range(12)]
    assert sorted(p.label for p in halves(pairs * 2, 100)) == [0, 0, 0, 1, 1, 1]
    assert [p.first for p in halves(pairs, 4)] == ["1", "2", "0", "4"]


def test_sentences_are_words_in_small_letters():
    text = "Return the next item. It's None\nif there is nothing (left)!\n\nShort one. Too short"
    assert [*sentences(text)] == ["return the next item", "it's none if there is nothing left"]


def test_docstrings_are_those_of_modules_classes_and_functions():
    source = '"""One."""\nclass A:\n    """Two."""\n    def f(self):\n        """Three."""\n'
    assert [*docstrings(source)] == ["One.", "Two.", "Three."]
    assert [*docstrings("def (")] == []
    assert ast.get_docstring(ast.parse(source)) == "One."


@pytest.mark.slow
def test_pairs_of_real_text_have_the_right_labels():
    held = {sentence for text in library()[True] for sentence in text}
    for pair in prose_pairs("inverted", 0, 300, True):
        words, half = pair.first.split(), len(pair.first.split()) // 2
        assert (pair.second.split() == words[half:] + words[:half]) == pair.label
        assert sorted(pair.second.split()) == sorted(words)
        assert pair.first in held
    following = {(a, b) for text in library()[False] for a, b in pairwise(text)}
    pairs = prose_pairs("adjacent", 0, 300, False)
    wrong = [p for p in pairs if ((p.first, p.second) in following) != p.label]
    assert len(wrong) < 3  # the same sentences may follow each other somewhere else, too
    assert 110 < sum(pair.label for pair in pairs) < 190


def test_what_is_kept_of_real_text_is_for_the_same_sentences_alone(monkeypatch):
    """Each version of Python has a library of its own, and encoders of two texts do not compare."""

    def parts_with(content):
        kept = []
        monkeypatch.setattr(pretraining, "edition", lambda: content)
        monkeypatch.setattr(
            pretraining, "side_by_side", lambda depth, function, parts: kept.extend(parts) or kept
        )
        pretraining.runs(Depth("full"))
        return {(text, task, seed, *content) for text, task, seed, _, *content in kept}

    one, other = parts_with("of one Python"), parts_with("of another")
    assert {part[0] for part in one & other} == {"grammar"}
    assert len(one - other) == 3 * 6  # seeds; tasks and baselines
