"""Sources of data: what they promise of each sample, asked anew in plain code."""

import datetime
import gzip
import itertools
import re
import struct
import warnings
from collections import Counter

import numpy as np
import pytest
import torch

from querykey.train import ConfigError, read_config
from querykey.train.data.images import Images, moved, read_idx
from querykey.train.data.parallel import read_lines
from querykey.train.data.sentences import Snippets, entailed_pair, inverted_pair, paired
from querykey.train.data.source import DataError
from querykey.train.data.text import Windows, pieces, text_files
from querykey.train.data.tokenizers import TokenizerError, load_tokenizer, make_tokenizer
from querykey.train.objectives.objective import IGNORED
from querykey.train.order import SampleOrder, sample_generator
from querykey.train.parts import DATA, load_data
from querykey.train.ranks import Ranks
from querykey.train.run import make_trainer


def data(tmp_path, name, objective="causal", **fields):
    sections = {"data": {"name": name, **fields}, "objective": {"name": objective}}
    return load_data(read_config(sections), tmp_path)


def test_every_sample_comes_once_in_an_epoch_and_in_another_order_in_the_next():
    order = SampleOrder(11, seed=3)
    epochs = [[order[position] for position in range(11 * e, 11 * (e + 1))] for e in range(3)]
    for number, epoch in enumerate(epochs):
        assert [e for e, _ in epoch] == [number] * 11
        assert sorted(index for _, index in epoch) == list(range(11))
    assert len({tuple(index for _, index in epoch) for epoch in epochs}) == 3
    assert SampleOrder(11, seed=4)[0] != order[0] or SampleOrder(11, seed=4)[1] != order[1]


def test_windows_cover_a_text_without_gaps(tmp_path):
    text = "".join(chr(97 + i % 23) for i in range(700))
    (tmp_path / "t.txt").write_text(text)
    loaded = data(tmp_path, "text", path=str(tmp_path / "t.txt"), tokenizer="characters", length=9)
    decode = loaded.facts.tokenizer.decode
    valid = [decode(loaded.valid.sample(i)["tokens"]) for i in range(len(loaded.valid))]
    assert "".join(piece[:-1] for piece in valid) == text[630 : 630 + 9 * len(valid)]
    assert all(a[-1] == b[0] for a, b in itertools.pairwise(valid))
    for epoch in range(3):
        train = [decode(loaded.train.sample(i, epoch)["tokens"]) for i in range(len(loaded.train))]
        assert "".join(piece[:-1] for piece in train) in text[:630]
        assert {len(piece) for piece in train} == {10}
    first = {tuple(loaded.train.sample(0, epoch)["tokens"]) for epoch in range(8)}
    assert len(first) > 1


@pytest.mark.parametrize(("seed", "latest"), [(None, 0), (0, 4)])
def test_there_are_as_many_windows_as_fit_wherever_the_first_begins(seed, latest):
    for count in range(11, 40):
        windows = Windows(np.arange(count), 5, seed)
        number = len(windows)
        rows = [windows.sample(number - 1, epoch)["tokens"] for epoch in range(30)]
        assert {len(row) for row in rows} == {6}
        assert max(row[0] for row in rows) == 5 * (number - 1) + latest
        assert 5 * number + latest + 6 > count  # one more would leave the text


@pytest.mark.parametrize("kind", ["bytes", "characters", "bpe"])
def test_tokenizers_give_the_text_back(kind):
    if kind == "bpe":
        pytest.importorskip("tokenizers", reason="BPE is trained by the package tokenizers")
    text = "Straße, naïve — 漢字\n\tif x:\n" * 5
    tokenizer = make_tokenizer(kind, [text], 300, ("mask", "end"))
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids.max() < tokenizer.special["mask"] == tokenizer.size - 2
    again = load_tokenizer(tokenizer.as_json())
    assert (again.size, again.special) == (tokenizer.size, tokenizer.special)
    assert again.encode(text).tolist() == ids.tolist()
    assert tokenizer.decode([*ids, tokenizer.special["end"]]) == text


def test_a_character_that_was_never_seen_is_named():
    with pytest.raises(TokenizerError, match="the character 'q' is not among the 3 that this"):
        make_tokenizer("characters", ["abc"], 0).encode("cq")


def test_copies_come_twice_and_only_the_second_time_is_judged(tmp_path):
    loaded = data(tmp_path, "copy", length=12, samples=50)
    for index in range(50):
        sample = loaded.train.sample(index)
        tokens, judged = sample["tokens"].tolist(), sample["judged"].tolist()
        half = tokens.index(26)
        assert tokens[:half] == tokens[half + 1 :]
        assert judged == [False] * (half + 1) + [True] * half
        assert len(tokens) <= 12
    assert len({len(loaded.train.sample(i)["tokens"]) for i in range(50)}) > 2


def test_recall_asks_for_the_value_that_was_shown_with_the_key(tmp_path):
    loaded = data(tmp_path, "recall", length=18, samples=50)
    for index in range(50):
        sample = loaded.train.sample(index)
        *shown, key, value = sample["tokens"].tolist()
        pairs = dict(zip(shown[::2], shown[1::2], strict=True))
        assert len(pairs) == 8
        assert pairs[key] == value
        assert sample["judged"].tolist() == [False] * 17 + [True]


def test_recall_may_ask_for_several_keys_each_once(tmp_path):
    orders = set()
    for queries, pairs in ((2, 5), (7, 7)):
        loaded = data(tmp_path, "recall", length=2 * (pairs + queries), queries=queries, samples=20)
        for index in range(20):
            sample = loaded.train.sample(index)
            tokens, shown = sample["tokens"].tolist(), 2 * pairs
            values = dict(zip(tokens[:shown:2], tokens[1:shown:2], strict=True))
            asked = tokens[shown::2]
            assert len(values) == pairs
            assert len(set(asked)) == queries
            assert [values[key] for key in asked] == tokens[shown + 1 :: 2]
            assert sample["judged"].tolist() == [False] * shown + [False, True] * queries
            orders.add(tuple(tokens[:shown:2].index(key) for key in asked))
    assert len(orders) > 30
    with pytest.raises(DataError, match=r"at least 28: for each of 7 queries .* got 27"):
        data(tmp_path, "recall", length=27, queries=7)


def parsed(text: str) -> datetime.date:
    """Read a date by the standard library's own formats."""
    text = re.sub(r"(\d)(st|nd|rd|th) of", r"\1", text).title()
    formats = (
        "%B %d, %Y", "%d %B %Y", "%b %d %Y", "%d %b %Y", "%A, %B %d, %Y", "%a %d %b %Y",
        "%d.%m.%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%b-%Y",
    )  # fmt: skip
    for form in formats:
        try:
            return datetime.datetime.strptime(text, form).date()
        except ValueError:
            continue
    raise AssertionError(text)


def test_dates_are_the_ones_that_were_written(tmp_path):
    loaded = data(tmp_path, "dates", "translation", samples=300)
    decode, shapes = loaded.facts.tokenizer.decode, Counter()
    for index in range(300):
        sample = loaded.train.sample(index)
        source, target = decode(sample["source"]), decode(sample["target"])
        assert parsed(source).isoformat() == target
        shapes[re.sub(r"[A-Za-z]+", "a", re.sub(r"\d+", "1", source))] += 1
    assert len(shapes) >= 8


@pytest.mark.parametrize(
    ("name", "objective", "field", "fields"),
    [
        ("dates", "translation", "source", {"samples": 3000}),
        ("copy", "causal", "tokens", {"samples": 3000, "length": 5}),  # 702 words there are
        ("recall", "causal", "tokens", {"samples": 3000, "length": 6}),
        ("inverted", "classes", "tokens", {"samples": 3000, "length": 128}),
    ],
)
def test_no_validation_sample_of_a_task_is_trained_on(tmp_path, name, objective, field, fields):
    loaded = data(tmp_path, name, objective, **fields)
    train, valid = (
        {tuple(split.sample(i)[field]) for i in range(len(split))}
        for split in (loaded.train, loaded.valid)
    )
    assert len(valid) > 10
    assert not train & valid


@pytest.mark.parametrize(
    ("name", "objective", "length", "sentence"),
    [
        ("dates", "translation", 28, "data.length is at least 29 for dates; got 28"),
        ("inverted", "classes", 64, "of a pair that is cut off the answer cannot be told; got 64"),
        ("adjacent", "classes", 2, "data.length of a pair is at least 5"),
        ("snippets", "classes", 1, "data.length of a snippet is at least 2"),
    ],
)
def test_lengths_that_are_too_short_for_a_task_are_refused(
    tmp_path, name, objective, length, sentence
):
    (tmp_path / "t.txt").write_text("This is a sentence, and not a short one. " * 100)
    path = {"path": str(tmp_path / "t.txt")} if name == "adjacent" else {}
    with pytest.raises(DataError) as error:
        data(tmp_path, name, objective, length=length, **path).train.sample(0)
    assert sentence in str(error.value)


def test_sentences_from_elsewhere_are_neither_the_first_nor_the_next(tmp_path):
    texts = [f"This is the sentence with number {i}." for i in range(110)]
    (tmp_path / "t.txt").write_text(" ".join(texts))
    loaded = data(tmp_path, "adjacent", "classes", path=str(tmp_path / "t.txt"), length=200)
    decode, labels = loaded.facts.tokenizer.decode, Counter()
    for split in (loaded.train, loaded.valid):
        for index in range(len(split)):
            sample = split.sample(index)
            first, second = (
                int(n) for n in re.findall(r"number (\d+)\.", decode(sample["tokens"]))
            )
            assert bool(sample["label"]) == (second == first + 1)
            assert first != second
            labels[sample["label"]] += 1
        epochs = [[split.sample(i, e)["label"] for i in range(len(split))] for e in range(2)]
        assert epochs[0] != epochs[1]
    assert min(labels.values()) > 30


def test_the_folder_of_a_run_is_no_part_of_its_text(tmp_path):
    (tmp_path / "t.txt").write_text("all of the text there is. " * 40)
    run = tmp_path / "runs" / "mine"
    sections = {"data": {"name": "text", "path": str(tmp_path), "length": 9}}
    sizes = []
    for _ in range(2):
        loaded = load_data(read_config(sections), run / "data")
        (run / "log.jsonl").write_text("what the run has written " * 30)
        sizes.append(len(loaded.train.tokens) + len(loaded.valid.tokens))
    assert sizes == [26 * 40] * 2


def test_hidden_files_of_a_folder_are_no_part_of_its_text(tmp_path):
    folder = tmp_path / ".library"  # that a folder is hidden itself does not matter
    for name in ("a.txt", "sub/b.txt", ".git/objects/x", ".DS_Store", "sub/.cache/y"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    config = read_config({"data": {"name": "text", "path": str(folder)}}).data
    assert text_files(config, tmp_path / "run") == [folder / "a.txt", folder / "sub" / "b.txt"]


@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        ({"a.txt": "plain", "b.png": b"\x89PNG"}, "`{}/b.png` holds bytes that no UTF-8 text has;"),
        ({"a.txt": "é".encode("latin-1")}, "`{}/a.txt` holds bytes that no UTF-8 text has;"),
        ({"a.txt": "wide".encode("utf-16"), "b": "bell\a"}, "`{}/a.txt` holds bytes that"),
        ({"a": b"\0", "b": b"\xff", "c": "ü"}, "`{}/a` and 1 other file hold bytes that"),
        ({"a": b"\0", "b": b"\xff", "c": "\0"}, "`{}/a` and 2 other files hold bytes that"),
        ({"a": "\ufeffmark", "b": "ü\r\n\t\f", "c": ""}, None),
    ],
)
def test_files_that_are_no_text_are_named_and_read_as_they_are(tmp_path, contents, sentence):
    folder = tmp_path / "texts"
    folder.mkdir()
    filler = b"words " * 100
    whole = b""
    for name, content in contents.items():
        content = content if isinstance(content, bytes) else content.encode()
        whole += content + filler
        (folder / name).write_bytes(content + filler)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = tmp_path / "run" / "data"
        loaded = [data(run, "text", path=str(folder), length=9) for _ in range(2)]
    said = [str(warning.message) for warning in caught]
    assert len(said) == (sentence is not None)  # once: the second time the tokens are there
    assert all(words.startswith(sentence.format(folder)) for words in said)
    for split in loaded:
        assert bytes([*split.train.tokens, *split.valid.tokens]) == whole


def test_a_text_of_one_line_is_read_in_parts(tmp_path):
    (tmp_path / "t.txt").write_text("x" * 1000)
    assert [len(part) for part in pieces([tmp_path / "t.txt"], letters=100)] == [200] * 5
    (tmp_path / "t.txt").write_text("a line\n" * 100)
    parts = list(pieces([tmp_path / "t.txt"], letters=100))
    assert all(part.endswith("\n") for part in parts)
    assert "".join(parts) == "a line\n" * 100


def test_bpe_takes_bytes_that_are_no_text_and_no_vocabulary_below_its_bytes(tmp_path):
    pytest.importorskip("tokenizers", reason="BPE is trained by the package tokenizers")
    (tmp_path / "t.bin").write_bytes(bytes(range(256)) * 9)
    path = str(tmp_path / "t.bin")
    with pytest.warns(UserWarning, match="holds bytes that no UTF-8 text has"):
        loaded = data(tmp_path, "text", path=path, tokenizer="bpe", vocabulary=300, length=9)
    assert "abcd" in loaded.facts.tokenizer.decode(loaded.train.tokens)
    with pytest.raises(TokenizerError, match=r"data.vocabulary is at least 256 .* got 255"):
        make_tokenizer("bpe", ["abc"], 255)


def test_lines_of_parallel_text_end_where_the_file_says(tmp_path):
    (tmp_path / "train.de").write_bytes("ein\u2028Hund\r\neine\x0bKatze\r\n".encode())
    assert read_lines(tmp_path, "train.de") == ["ein\u2028Hund", "eine\x0bKatze"]
    (tmp_path / "train.en").write_text("a dog\na cat")
    assert read_lines(tmp_path, "train.en") == ["a dog", "a cat"]
    (tmp_path / "val.de.gz").write_bytes(gzip.compress(b"ein Hund " * 50)[:12] + b"\xff" * 40)
    with pytest.raises(DataError, match=r"val.de.gz` cannot be read"):
        read_lines(tmp_path, "val.de")


@pytest.mark.parametrize("empty", ["train", "val"])
def test_a_split_without_samples_is_refused(tmp_path, empty):
    for split, language in itertools.product(("train", "val"), ("de", "en")):
        (tmp_path / f"{split}.{language}").write_text("" if split == empty else "a\nb\n")
    purpose = {"train": "train", "val": "evaluate"}[empty]
    with pytest.raises(DataError, match=f"`parallel` have no sample to {purpose} on"):
        data(tmp_path, "parallel", "translation", path=str(tmp_path))


def test_images_with_more_than_ten_classes_or_other_shapes(tmp_path):
    for name in ("train", "t10k"):
        write_idx(tmp_path / f"{name}-images-idx3-ubyte", np.zeros((3, 4, 4)), packed=False)
        write_idx(tmp_path / f"{name}-labels-idx1-ubyte", np.array([1, 2, 46]), packed=False)
    assert data(tmp_path, "mnist", "images", path=str(tmp_path)).facts.classes == 47
    write_idx(tmp_path / "t10k-images-idx3-ubyte", np.zeros((3, 5, 4)), packed=False)
    with pytest.raises(DataError, match="to train and to test with have different sizes"):
        data(tmp_path, "mnist", "images", path=str(tmp_path))
    write_idx(tmp_path / "train-images-idx3-ubyte", np.zeros((3, 16)), packed=False)
    with pytest.raises(DataError, match=r"the train images are \(3, 16\) and their labels \(3,\)"):
        data(tmp_path, "mnist", "images", path=str(tmp_path))


def test_inverted_sentences_have_the_same_words_whether_right_or_wrong():
    labels = Counter()
    for index in range(200):
        first, second, label = inverted_pair(sample_generator(0, index))
        labels[label] += 1
        assert Counter(first.split()) == Counter(second.split())
        who, to = (
            re.findall(rf"{word} the (\w+)", second)[-1] for word in (first.split()[2], "to")
        )
        assert bool(label) == ((who, to) == (first.split()[1], first.split()[6]))
    assert min(labels.values()) > 60


def test_claims_follow_from_who_gained_and_who_lost():
    gained = {"bought", "found", "received", "inherited", "won"}
    lost = {"sold", "lost", "gave", "dropped", "burned"}
    counts, orders = Counter(), Counter()
    for index in range(1200):
        first, claim, label = entailed_pair(sample_generator(1, index))
        words = claim.split()
        who, what, has = words[1], words[-1], words[2:4] == ["now", "has"]
        part = next(part for part in first.split(" and ") if part.split()[1] == who)
        assert part.split()[-1] == what
        owns = part.split()[2] in gained
        assert bool(label) == (owns == has)
        verbs = [part.split()[2] for part in first.split(" and ")]
        assert all((verb in gained) != (verb in lost) for verb in verbs)
        orders[tuple(verb in gained for verb in verbs)] += 1
        counts[label, has, sum(verb in gained for verb in verbs)] += 1
    assert len(orders) == 4
    assert min(orders.values()) > 240  # of 300: nobody's verb tells the other's
    for gains, expected in ((0, 150), (1, 150), (2, 150)):
        for has in (False, True):
            right, wrong = counts[1, has, gains], counts[0, has, gains]
            if gains == 1:  # who is asked decides
                assert min(right, wrong) > 0.75 * expected
            else:  # both have what they gained, or have not what they lost
                assert (right, wrong)[has == (gains == 2)] == 0
                assert max(right, wrong) > 0.75 * expected
    # Neither the claim alone nor the premise alone tells anything.
    for place in (1, 2):
        for value in {key[place] for key in counts}:
            right = sum(n for key, n in counts.items() if key[place] == value and key[0])
            both = sum(n for key, n in counts.items() if key[place] == value)
            assert 0.4 < right / both < 0.6


def write_idx(file, array, packed):
    content = b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    content += array.astype(np.uint8).tobytes()
    file.write_bytes(gzip.compress(content) if packed else content)
    return file


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_are_read_packed_or_not(tmp_path, packed):
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 4))
    file = write_idx(tmp_path / "images", images, packed)
    assert (read_idx(file) == images).all()


def test_what_is_no_idx_file_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"hello")
    with pytest.raises(DataError, match="is no idx file of bytes"):
        read_idx(tmp_path / "a")
    file = write_idx(tmp_path / "b", np.zeros((3, 2, 2)), packed=False)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"is cut off: its header promises \(3, 2, 2\)"):
        read_idx(file)
    with pytest.raises(DataError, match=r"there is no folder `.*none` with train-images"):
        data(tmp_path, "mnist", "images", path=str(tmp_path / "none"))


def test_mnist_is_read_from_its_folder(tmp_path):
    chance = np.random.default_rng(0)
    for name, count in (("train", 7), ("t10k", 3)):
        images, labels = chance.integers(0, 256, (count, 28, 28)), chance.integers(0, 10, count)
        write_idx(tmp_path / f"{name}-images-idx3-ubyte.gz", images, packed=True)
        write_idx(tmp_path / f"{name}-labels-idx1-ubyte", labels, packed=False)
    loaded = data(tmp_path, "mnist", "images", path=str(tmp_path))
    sample = loaded.valid.sample(2)
    assert (len(loaded.train), len(loaded.valid)) == (7, 3)
    assert sample["label"] == labels[2]
    assert np.allclose(sample["image"][0] * 0.3081 + 0.1307, images[2] / 255, atol=1e-6)


def test_pictures_to_train_on_are_moved_anew_in_every_epoch_and_others_are_not():
    picture = np.arange(1, 21).reshape(4, 5)
    for down, right in itertools.product(range(-2, 3), repeat=2):
        shown = moved(picture, down, right)
        for row, column in itertools.product(range(4), range(5)):
            source = row - down, column - right
            inside = 0 <= source[0] < 4 and 0 <= source[1] < 5
            assert shown[row, column] == (picture[source] if inside else 0)
    images = Images(picture[None], np.array([3]), 0.0, 1.0, shift=2, seed=1)
    seen = {images.sample(0, epoch)["image"].tobytes() for epoch in range(300)}
    assert len(seen) == 25
    still = Images(picture[None], np.array([3]), 0.0, 1.0)
    assert (still.sample(0, 7)["image"] == picture).all()


def test_digits_are_moved_where_the_config_says_so(tmp_path):
    pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    plain, shifted = (data(tmp_path, "digits", "images", shift=shift) for shift in (0, 2))
    pairs = [(a.train.sample(5, 1), b.train.sample(5, 1)) for a, b in ((plain, shifted),)]
    assert not np.array_equal(*(sample["image"] for sample in pairs[0]))
    assert np.array_equal(plain.valid.sample(5)["image"], shifted.valid.sample(5)["image"])
    with pytest.raises(
        ConfigError, match=r"data\.shift moves images, and the data `copy` are none"
    ):
        data(tmp_path, "copy", shift=1)


def test_the_classes_of_vectors_lie_in_their_widest_directions(tmp_path):
    loaded = data(tmp_path, "vectors", "autoencoding", samples=3000)
    samples = [loaded.train.sample(i) for i in range(3000)]
    x, y = np.stack([s["vector"] for s in samples]), np.array([s["label"] for s in samples])
    values, directions = np.linalg.eigh(np.cov(x.T))
    assert (values > 0.5).sum() == 20
    assert (values < 0.05).sum() == 80
    for rows, least, most in ((slice(-20, None), 0.95, 1), (slice(0, 80), 0, 0.6)):
        features = x @ directions[:, rows]
        fit = np.linalg.lstsq(features[:2000], 2 * y[:2000] - 1, rcond=None)[0]
        assert least <= ((features[2000:] @ fit > 0) == y[2000:]).mean() <= most


def test_vectors_of_ten_classes_are_those_of_two(tmp_path):
    two, ten = (data(tmp_path, "vectors", "autoencoding", samples=2000, classes=c) for c in (2, 10))
    samples = [(two.train.sample(i), ten.train.sample(i)) for i in range(2000)]
    assert all(np.array_equal(a["vector"], b["vector"]) for a, b in samples)
    assert ten.facts.classes == 10
    assert np.bincount([b["label"] for _, b in samples], minlength=11)[:10].min() > 20
    with pytest.raises(ConfigError, match=r"data\.classes is how many classes `vectors` have"):
        data(tmp_path, "copy", classes=3)
    with pytest.raises(ConfigError, match="classes"):
        read_config({"data": {"classes": 1}})


@pytest.mark.parametrize(
    ("name", "objective", "fields", "sentence"),
    [
        ("copy", "causal", {"queries": 2},
         "data.queries is how many keys of `recall` are asked, and the data `copy` are none; "),
        ("digits", "images", {"path": "/"},
         "data.path names what is read, and the data `digits` read nothing; leave it out"),
        ("inverted", "classes", {"unlabelled": True},
         "data.unlabelled is whether `snippets` of other packages are read too, and the data "),
        ("snippets", "classes", {"unlabelled": True},
         "the objective `classes` learns nothing; objective.name for it is words-and-pairs"),
    ],
)  # fmt: skip
def test_a_field_that_says_nothing_of_these_data_is_refused(
    tmp_path, name, objective, fields, sentence
):
    with pytest.raises(ConfigError) as error:
        data(tmp_path, name, objective, **fields)
    assert sentence in str(error.value)


def test_parallel_lines_are_paired(tmp_path):
    for split in ("train", "val"):
        (tmp_path / f"{split}.de").write_text("ein Hund\neine Katze\n")
        (tmp_path / f"{split}.en.gz").write_bytes(gzip.compress(b"a dog\na cat\n"))
    loaded = data(tmp_path, "parallel", "translation", path=str(tmp_path))
    decode = loaded.facts.tokenizer.decode
    pairs = [loaded.train.sample(i) for i in range(2)]
    assert [(decode(p["source"]), decode(p["target"])) for p in pairs] == [
        ("ein Hund", "a dog"),
        ("eine Katze", "a cat"),
    ]
    (tmp_path / "val.de").write_text("ein Hund\n")
    with pytest.raises(DataError, match="1 lines of de cannot be paired with 2 of en"):
        data(tmp_path, "parallel", "translation", path=str(tmp_path))


def test_parallel_lines_are_cut_to_the_length_and_empty_ones_left_out(tmp_path):
    for split in ("train", "val"):
        (tmp_path / f"{split}.de").write_text("abcdefgh\n \nijk\nlmn\nopqr\n")
        (tmp_path / f"{split}.en").write_text("ABCDEFGH\nX\n\t\nLMN\nOPQR\n")
    loaded = data(tmp_path, "parallel", "translation", path=str(tmp_path), length=4)
    decode, split = loaded.facts.tokenizer.decode, loaded.train
    pairs = [split.sample(i) for i in range(len(split))]
    assert [(decode(p["source"]), decode(p["target"])) for p in pairs] == [
        ("abcd", "ABC"),  # with its end a target has four tokens, too
        ("lmn", "LMN"),
        ("opqr", "OPQ"),
    ]


@pytest.mark.parametrize(
    ("sizes", "left"),
    [((4, 4), (4, 4)), ((9, 2), (6, 2)), ((2, 9), (2, 6)), ((9, 7), (4, 4)), ((6, 5), (4, 4))],
)
def test_of_a_pair_that_is_too_long_the_longer_text_is_cut(sizes, left):
    first, second = np.arange(sizes[0]), 50 + np.arange(sizes[1])
    sample = paired({"begin": 97, "separate": 98}, first, second, length=11)
    a, b = list(range(left[0])), list(range(50, 50 + left[1]))
    assert sample["tokens"].tolist() == [97, *a, 98, *b, 98]
    assert sample["types"].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)


@pytest.mark.parametrize(("count", "kept"), [(2, [1]), (4, [3]), (5, [4]), (8, [4]), (10, [4, 9])])
def test_every_fifth_file_of_a_package_is_kept_or_the_last_of_fewer(
    tmp_path, monkeypatch, count, kept
):
    files = [tmp_path / "xml" / f"{number}.py" for number in range(count)]
    (tmp_path / "xml").mkdir()
    for number, file in enumerate(files):
        file.write_text(f"<{number}>" * 4)
    monkeypatch.setattr("querykey.train.data.sentences.stdlib_files", lambda: files)
    loaded = data(tmp_path, "snippets", "classes", length=13)
    decode = loaded.facts.tokenizer.decode
    for split, numbers in (
        (loaded.valid, kept),
        (loaded.train, [n for n in range(count) if n not in kept]),
    ):
        texts = [decode(split.sample(i)["tokens"]) for i in range(len(split))]
        assert texts == [f"<{number}>" * 4 for number in numbers]


@pytest.mark.slow
def test_snippets_of_one_file_are_all_of_one_split(tmp_path):
    loaded = data(tmp_path, "snippets", "classes", length=200)
    first, second, valid = (
        [source.sample(i, epoch) for i in range(len(source))]
        for source, epoch in ((loaded.train, 0), (loaded.train, 1), (loaded.valid, 0))
    )
    train = {tuple(s["tokens"]) for s in first + second}
    repeated = sum(tuple(s["tokens"]) in train for s in valid)
    assert repeated < 0.02 * len(valid)
    assert {len(s["tokens"]) for s in first + second + valid} == {200}
    assert {s["label"] for s in first} == {s["label"] for s in valid} == set(range(8))
    assert [s["label"] for s in first] == [s["label"] for s in second]
    moved = sum(
        a["tokens"].tolist() != b["tokens"].tolist() for a, b in zip(first, second, strict=True)
    )
    assert moved > 0.95 * len(first)
    assert loaded.valid.sample(3, 1)["tokens"].tolist() == valid[3]["tokens"].tolist()


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A library of three packages with six files each, one of them none of the eight."""
    files = []
    for package in ("asyncio", "xml", "json"):
        for number in range(6):
            file = tmp_path / package / f"{number}.py"
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"{package}{number} " * 20)
            files.append(file)
    monkeypatch.setattr("querykey.train.data.sentences.stdlib_files", lambda: files)


def test_snippets_without_a_label_are_those_of_other_packages(tmp_path, library):
    splits = {}
    for unlabelled in (False, True):
        fields = {"length": 12, "unlabelled": unlabelled}
        loaded = data(tmp_path, "snippets", "words-and-pairs", **fields)
        decode = loaded.facts.tokenizer.decode
        for name in ("train", "valid"):
            source = getattr(loaded, name)
            samples = [source.sample(i) for i in range(len(source))]
            splits[unlabelled, name] = [(decode(s["tokens"]), s["label"]) for s in samples]
    labels = Counter(label for _, label in splits[True, "train"])
    assert set(labels) == {0, 7, IGNORED}
    assert labels[IGNORED] == 6 * (len("json0 ") * 20 // 11)
    assert all(("json" in text) == (label == IGNORED) for text, label in splits[True, "train"])
    assert splits[True, "valid"] == splits[False, "valid"]
    labelled = [sample for sample in splits[True, "train"] if sample[1] != IGNORED]
    assert labelled == splits[False, "train"]


@torch.no_grad()
def test_pairs_without_a_label_are_not_judged_by_their_class(tmp_path, library):
    sections = {
        "folder": str(tmp_path / "run"), "objective": {"name": "words-and-pairs"},
        "data": {"name": "snippets", "length": 12, "unlabelled": True},
        "model": {"name": "bert", "width": 16, "heads": 2, "layers": 1},
        "loop": {"batch": 300, "precision": "float64", "steps": 2},
    }  # fmt: skip
    trainer = make_trainer(read_config(sections), Ranks())
    batch = trainer.batch_at(range(len(trainer.data.train)))
    labels = batch.tensors["labels"]
    judged = labels != IGNORED
    assert 0 < judged.sum() < len(labels)
    assert batch.terms["pairs"] == int(judged.sum())
    trainer.model.eval()
    scores = trainer.model(batch.tensors["ids"])[1]
    wanted = torch.nn.functional.cross_entropy(scores[judged], labels[judged], reduction="sum")
    assert float(trainer.sums(batch)["pairs"]) == pytest.approx(float(wanted), abs=1e-9)


def test_pieces_of_a_file_cover_it_in_order():
    files = [(0, np.arange(7)), (1, np.arange(100, 102)), (2, np.arange(200, 212))]
    whole = Snippets(files, room=3, begin=99)
    cut = [(s["label"], s["tokens"].tolist()) for s in map(whole.sample, range(len(whole)))]
    assert cut == [
        (0, [99, 0, 1, 2]), (0, [99, 3, 4, 5]),
        (2, [99, 200, 201, 202]), (2, [99, 203, 204, 205]),
        (2, [99, 206, 207, 208]), (2, [99, 209, 210, 211]),
    ]  # fmt: skip
    moving = Snippets(files, room=3, begin=99, seed=0)
    firsts = {moving.sample(1, epoch)["tokens"][1] for epoch in range(20)}
    assert firsts == {3, 4}  # 5 would leave the file before its piece is full


def test_every_source_says_what_it_is():
    assert all(kind.says for kind in DATA.values())
