"""Pairs as tensors, hidden words, and what is read off an encoder, on examples made by hand."""

import torch

from querykey.lab.encoders import (
    BEGIN,
    HIDDEN,
    IGNORED,
    PADDING,
    SEPARATE,
    UNKNOWN,
    encoder,
    hide,
    most_frequent,
    train,
)
from querykey.lab.experiments.pretraining import CountedWords, openings
from querykey.lab.language import SentencePair

PAIRS = [SentencePair("a b", "b c a", 1), SentencePair("a", "d", 0), SentencePair("b", "c a a", 1)]


def test_a_pair_is_both_sentences_between_marks():
    words = most_frequent(PAIRS, 3)
    assert list(words.ids) == ["a", "b", "c"]
    a, b, c = words.ids.values()
    pairs = words.encode(PAIRS)
    assert words.count == c + 1
    assert pairs.ids.tolist() == [
        [BEGIN, a, b, SEPARATE, b, c, a, SEPARATE],
        [BEGIN, a, SEPARATE, UNKNOWN, SEPARATE, PADDING, PADDING, PADDING],
        [BEGIN, b, SEPARATE, c, a, a, SEPARATE, PADDING],
    ]
    assert pairs.real.sum(1).tolist() == [8, 5, 7]
    assert pairs.types.tolist() == [
        [0, 0, 0, 0, 1, 1, 1, 1],
        [0, 0, 0, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 1, 1, 1, 0],
    ]
    assert pairs.labels.tolist() == [1, 0, 1]


def test_some_words_are_hidden_and_never_a_mark():
    pairs = most_frequent(PAIRS, 3).encode(PAIRS * 200)
    ids, wanted = hide(pairs.ids, torch.Generator().manual_seed(0))
    hidden = ids == HIDDEN
    assert bool((hidden == (wanted != IGNORED)).all())
    assert bool((hidden.sum(1) >= 1).all())
    assert bool((pairs.ids[hidden] > HIDDEN).all())
    assert torch.equal(wanted[hidden], pairs.ids[hidden])
    assert torch.equal(ids[~hidden], pairs.ids[~hidden])
    share = float(hidden.sum() / (pairs.ids > HIDDEN).sum())
    assert 0.25 < share < 0.45  # rows of 2 to 5 words have one hidden at least


def test_counted_words_are_those_of_each_sentence_and_those_of_both():
    words = most_frequent(PAIRS, 3)
    pairs = words.encode(PAIRS)
    a, b, c = words.ids.values()
    counts = CountedWords(words.count)(pairs.ids, pairs.real, pairs.types)[0]
    first, second, both = counts.split(words.count)
    kept = [[int(part[i]) for i in (a, b, c)] for part in (first, second, both)]
    assert kept == [[1, 1, 0], [1, 1, 1], [1, 1, 0]]


def test_the_first_word_of_the_second_sentence_has_a_class_where_it_is_frequent():
    pairs = most_frequent(PAIRS, 3).encode(PAIRS + PAIRS[2:])  # b, unknown, c, c
    classes = openings(pairs).tolist()
    assert classes[2] == classes[3] == 1
    assert sorted(classes) == [1, 1, 2, 3]


def test_a_small_encoder_learns_whether_two_sentences_are_the_same():
    torch.manual_seed(0)
    letters = "abcd"
    pairs = [SentencePair(x, y, int(x == y)) for x in letters for y in letters]
    data = most_frequent(pairs, 4).encode(pairs + 3 * [p for p in pairs if p.label])
    model = encoder(16, 9, 8, hidden=False, labelled=True)
    train(model, data, 150, hidden=False, labelled=True, batch=16)
    scores = model(data.ids, data.real, data.types)
    assert float((scores.argmax(1) == data.labels).float().mean()) > 0.95
