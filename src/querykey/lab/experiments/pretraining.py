"""What pretraining tasks teach (document 003, 12.6): hidden words, and three kinds of pairs.

The same small encoder learns each task on the same text, and hidden words with adjacent sentences
at once. A linear probe then tells what each representation knows of all of them. One text is from
a grammar that knows what is inverted and what follows; the other one is the English in Python's
own library, where nobody has labelled what follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import sub
from statistics import fmean

import torch
from torch import Tensor, nn

from querykey.lab.claim import AtLeast, AtMost, Claim
from querykey.lab.encoders import (
    IGNORED,
    EncodedPairs,
    encoder,
    hide,
    most_frequent,
    train,
)
from querykey.lab.experiment import Depth, Experiment
from querykey.lab.language import PAIR_TASKS, PRINTED, SentencePair, grammar_pairs
from querykey.lab.measurement import Grid, Measured, Measurement, sampled, unmeasured
from querykey.lab.prose import edition, prose_pairs
from querykey.lab.workers import side_by_side
from querykey.models import probe

HIDDEN_WORDS, NOTHING, BOTH = "hidden words", "nothing", "hidden words and adjacent"
COUNTS = "counted words"  # in place of an encoder
TEXTS: dict[str, tuple[Callable[..., list[SentencePair]], tuple[str, ...]]] = {
    "grammar": (grammar_pairs, PAIR_TASKS),
    "prose": (prose_pairs, ("adjacent", "inverted")),
}
COMPARED = (  # text, what is asked for, trained on, beside trained on
    ("grammar", "adjacent", "adjacent", HIDDEN_WORDS),
    ("grammar", "first word", HIDDEN_WORDS, "adjacent"),
    ("grammar", "inverted", "inverted", "entailed"),
    ("grammar", "entailed", "entailed", "inverted"),
)
OPENING = "first word"  # of the second sentence: one of the seven most frequent, or another one
FULL = "at quick depth this is not trained"

CLAIMS = (
    Claim("D5", "the model is required to generate the most likely hidden word: on text that it "
          "has not seen it is right at least {value} more often than the most frequent word is",
          0.1, of="hidden words over guessing, grammar", within=AtLeast()),
    Claim("D5", "adjacent sentences can be told from others: at least {value} of unseen pairs are "
          "right", 0.7, of="accuracy, adjacent, grammar", within=AtLeast()),
    Claim("D5", "inverted sentence detection can be learned: at least {value} of unseen pairs are "
          "right", 0.9, of="accuracy, inverted, grammar", within=AtLeast()),
    Claim("D5", "logical inference verification can be learned, too: at least {value} of unseen "
          "pairs are right", 0.9,
          of="accuracy, entailed, grammar", within=AtLeast()),
    Claim("D5", "of the pairs that the text prints, and of the same with one wrong word, a share "
          "of {value} is told rightly", 1.0, of="printed pairs told rightly", within=AtLeast()),
    Claim("D5", "the first task is generative, the second contrastive, and both are needed: hidden "
          "words alone leave at least {value} of a linear probe's accuracy on adjacent sentences "
          "to the other task", 0.05,
          of="probe of adjacent: trained on adjacent less on hidden words, grammar",
          within=AtLeast()),
    Claim("D5", "adjacent sentences alone leave at least {value} of a linear probe's accuracy on "
          "words to hidden words", 0.05,
          of="probe of first word: trained on hidden words less on adjacent, grammar",
          within=AtLeast()),
    Claim("D5", "their combination leads to a more comprehensive understanding: over all probes, "
          "the mean accuracy is at least {value} above that of the better one alone", 0.01,
          of="both over the better one, mean of probes, grammar", within=AtLeast(),
          right="In as many steps of a small model two tasks are learned less far than each alone: "
          "hidden words are found as often, and pairs are told less often."),
    Claim("D5", "each of the two new tasks teaches what the other does not: a probe of inverted "
          "sentences gains at least {value} by training on them rather than on inference", 0.05,
          of="probe of inverted: trained on inverted less on entailed, grammar",
          within=AtLeast()),
    Claim("D5", "a probe of inference gains at least {value} by training on inference rather than "
          "on inverted sentences", 0.05,
          of="probe of entailed: trained on entailed less on inverted, grammar",
          within=AtLeast()),
    Claim("D5", "on real text hidden words are right at least {value} more often than the most "
          "frequent word is", 0.05, of="hidden words over guessing, prose", within=AtLeast(),
          right="More often, but not by so much: this text is short, and its words are many."),
    Claim("D5", "on real text adjacent sentences can be told from others: at least {value} of "
          "unseen pairs are right", 0.6,
          of="accuracy, adjacent, prose", within=AtLeast()),
    Claim("D5", "on real text inverted sentences can be told from other orders of the same words: "
          "at least {value} of unseen pairs are right", 0.9,
          of="accuracy, inverted, prose", within=AtLeast(),
          right="In as few steps hardly any: the sentences are longer than the grammar's, and each "
          "word is rarer."),
    Claim("D5", "to tell adjacent sentences of real text takes more than counting words: counts "
          "are right at most {value} more often than the model", 0.0,
          of="counting words less the model, adjacent, prose", within=AtMost(),
          right="Adjacent sentences share words, and counting them is at least as good as what "
          "a small model learns of so little text."),
    Claim("D5", "on real text, too, the combination is better: by at least {value} in the mean "
          "accuracy of all probes", 0.01,
          of="both over the better one, mean of probes, prose", within=AtLeast()),
)  # fmt: skip


@dataclass(frozen=True)
class EncoderSetting:
    """How much an encoder is trained with, and how large it is."""

    width: int
    pairs: int
    steps: dict[str, int]  # by text
    held: int  # pairs of each kind that are held out


SETTINGS = {
    "quick": EncoderSetting(32, 4000, {"grammar": 400}, 800),
    "full": EncoderSetting(64, 20000, {"grammar": 2000, "prose": 1500}, 2400),
}
Found = dict[str, float]  # what is known of one encoder, by name


class CountedWords(nn.Module):
    """The words of both sentences, and those that they share, as a vector; nothing is learned."""

    def __init__(self, words: int):
        super().__init__()
        self.words = words

    def forward(self, ids: Tensor, real: Tensor, types: Tensor) -> Tensor:
        """Return (batch, 3 words)."""
        first, second = (
            torch.zeros(len(ids), self.words).scatter_(1, ids.where(real & (types == side), 0), 1.0)
            for side in (0, 1)
        )
        return torch.cat([first, second, first * second], 1)


def openings(pairs: EncodedPairs) -> Tensor:
    """Return the class of the second sentence's first word, 0 where it is a rare one."""
    place = pairs.types.argmax(1)
    words = pairs.ids[torch.arange(len(pairs)), place]
    common = words.bincount().argsort(descending=True)[:7]
    return ((words[:, None] == common) * torch.arange(1, len(common) + 1)).sum(1)


@torch.no_grad()
def hidden_right(model: nn.Module, pairs: EncodedPairs) -> tuple[float, float]:
    """Return how often hidden words are found, and how often the most frequent one is right."""
    ids, wanted = hide(pairs.ids, torch.Generator().manual_seed(0))
    scores = model(ids, pairs.real, pairs.types)
    words, places = (scores[0] if isinstance(scores, tuple) else scores), wanted != IGNORED
    right = wanted[places]
    return float((words.argmax(-1)[places] == right).float().mean()), float(
        right.bincount().max() / len(right)
    )


@torch.no_grad()
def labels_right(model: nn.Module, pairs: EncodedPairs) -> float:
    """Return how many pairs are told rightly."""
    scores = model(pairs.ids, pairs.real, pairs.types)
    label = scores[1] if isinstance(scores, tuple) else scores
    return float((label.argmax(1) == pairs.labels).float().mean())


def learned(text: str, task: str, seed: int, setting: EncoderSetting, content: str = "") -> Found:
    """Train an encoder on a task of a text; return what it and its representation know.

    `content` is a hash of the text: what is kept of a part is no part of the same with another one.
    """
    make, tasks = TEXTS[text]
    words = most_frequent(make("adjacent", seed, setting.pairs, False), 2000)
    held = {t: words.encode(make(t, seed, setting.held, True)) for t in tasks}
    hidden, labelled = task in (HIDDEN_WORDS, BOTH), task not in (HIDDEN_WORDS, NOTHING, COUNTS)
    data = words.encode(make(task if task in tasks else "adjacent", seed, setting.pairs, False))
    torch.manual_seed(seed)
    if task == COUNTS:
        return probes(CountedWords(words.count), held)
    model = encoder(setting.width, words.count, 48, hidden, labelled)
    if task != NOTHING:
        train(model, data, setting.steps[text], hidden, labelled)
    found: Found = {}
    if hidden:
        found["hidden words"], found["guessing"] = hidden_right(model, held["adjacent"])
    if labelled:
        found["accuracy"] = labels_right(model, held[task if task in tasks else "adjacent"])
    if text == "grammar" and task in PRINTED:
        found["printed"] = labels_right(model, words.encode(PRINTED[task]))
    return found | probes(model, held)


def probes(model: nn.Module, held: dict[str, EncodedPairs]) -> Found:
    """Return how often a linear classifier of the model's vectors is right, by what it tells."""
    labels = {task: (pairs, pairs.labels) for task, pairs in held.items()}
    labels[OPENING] = (held["adjacent"], openings(held["adjacent"]))
    return {
        f"probe of {name}": probe(
            model, ((pairs.ids, pairs.real, pairs.types), wanted), seeds=1
        ).accuracy
        for name, (pairs, wanted) in labels.items()
    }


def runs(depth: Depth) -> dict[tuple[str, str], list[Found]]:
    """Return what was found of every text and task, seed by seed."""
    setting = SETTINGS[depth.name]
    wanted = depth.pick(
        quick=[("grammar", HIDDEN_WORDS), ("grammar", "inverted")],
        full=[
            (text, task)
            for text, (_, tasks) in TEXTS.items()
            for task in (NOTHING, COUNTS, HIDDEN_WORDS, *tasks, BOTH)
        ],
    )
    seeds = range(depth.pick(quick=2, full=3))
    contents = {text: edition() if text == "prose" else "" for text, _ in wanted}
    parts = [(*key, seed, setting, contents[key[0]]) for key in wanted for seed in seeds]
    results = iter(side_by_side(depth, learned, parts))
    return {key: [next(results) for _ in seeds] for key in wanted}


Column = list[float]  # a number for each seed


def column(found: list[Found], name: str) -> Column:
    """Return one value of every seed."""
    return [run[name] for run in found]


def less(above: Column, below: Column) -> Measured:
    """Return by how much one column is above another, seed by seed."""
    return sampled(map(sub, above, below))


def values_of(found: dict[tuple[str, str], list[Found]]) -> dict[str, Measured]:
    """Return every number of every encoder, and the differences that claims are about."""
    values = {}
    for (text, task), run in found.items():
        values |= {f"{name}: trained on {task}, {text}": sampled(column(run, name))
                   for name in run[0]}  # fmt: skip
        if task in PAIR_TASKS:
            values[f"accuracy, {task}, {text}"] = sampled(column(run, "accuracy"))
        if task == HIDDEN_WORDS:
            values[f"hidden words over guessing, {text}"] = less(
                column(run, "hidden words"), column(run, "guessing")
            )
    for text, what, one, other in COMPARED:
        if {(text, one), (text, other)} <= found.keys():
            columns = (column(found[text, task], f"probe of {what}") for task in (one, other))
            values[f"probe of {what}: trained on {one} less on {other}, {text}"] = less(*columns)
    return values


def combined(found: dict[tuple[str, str], list[Found]]) -> dict[str, Measured]:
    """Return what both tasks together gain, how counting words compares, and the printed pairs."""
    values = {}
    for text in TEXTS:
        means = {
            task: [
                fmean(v for n, v in run.items() if n.startswith("probe"))
                for run in found[text, task]
            ]
            for task in (HIDDEN_WORDS, "adjacent", BOTH)
        }
        better = max((HIDDEN_WORDS, "adjacent"), key=lambda task: fmean(means[task]))
        values[f"both over the better one, mean of probes, {text}"] = less(
            means[BOTH], means[better]
        )
        values[f"counting words less the model, adjacent, {text}"] = less(
            column(found[text, COUNTS], "probe of adjacent"),
            column(found[text, "adjacent"], "accuracy"),
        )
    told = (column(found["grammar", task], "printed") for task in PRINTED)
    values["printed pairs told rightly"] = sampled(map(fmean, zip(*told, strict=True)))
    return values


def table_of(found: dict[tuple[str, str], list[Found]], text: str) -> Grid:
    """Return what linear probes know, by what was trained (down) and what is asked (across)."""
    rows = {task: run for (name, task), run in found.items() if name == text}
    asked = [name for name in next(iter(rows.values()))[0] if name.startswith("probe")]
    cells = [[fmean(column(run, name)) for name in asked] for run in rows.values()]
    title = f"Accuracy of a linear probe ({text}): trained on (down), asked for (across)"
    return Grid(title, cells, [*rows], [name.removeprefix("probe of ") for name in asked])


def measure(depth: Depth) -> Measurement:
    """Train an encoder on every task of both texts, and probe what it knows."""
    found = runs(depth)
    values = dict.fromkeys([claim.of for claim in CLAIMS], unmeasured(FULL)) | values_of(found)
    if depth.name == "full":
        values |= combined(found)
    texts = [text for text in TEXTS if any(name == text for name, _ in found)]
    return Measurement(values, {text: table_of(found, text) for text in texts})


EXPERIMENT = Experiment(
    "pretraining", "What do pretraining tasks teach, one by one and together?", CLAIMS, measure
)
