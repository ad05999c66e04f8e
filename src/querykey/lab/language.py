"""A small language whose grammar knows which sentence follows, is inverted, or is entailed.

Its text is stories: sentences about two people and one thing. From them come pairs of sentences
with a label, as document 003, 12.6 asks for. Wrong pairs are made of the same words as right ones,
or of words that are as frequent there, so that no word of the second sentence tells them apart; the
words that both sentences share do, in part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import Literal
from zlib import crc32

PairTask = Literal["adjacent", "inverted", "entailed"]
PAIR_TASKS: tuple[PairTask, ...] = ("adjacent", "inverted", "entailed")

PEOPLE = ("the boy", "the girl", "the farmer", "the doctor", "john", "mary", "anna", "paul")
MOVES = ("ran", "walked", "danced", "jumped", "swam", "crawled", "rode", "flew")
MANNERS = ("quickly", "slowly", "quietly", "gladly", "calmly", "boldly", "gently", "sadly")
GAINED = ("bought", "found", "received", "won", "inherited")
LOST = ("sold", "lost", "dropped", "burned", "broke")
LOOKS = ("new", "old", "red", "small", "heavy")
THINGS = ("laptop", "book", "lamp", "chair", "coat", "boat")


@dataclass(frozen=True)
class Move:
    """Somebody moved in some manner, perhaps to somebody."""

    who: str
    verb: str
    manner: str
    goal: str = ""

    def __str__(self) -> str:
        return f"{self.who} {self.verb} {self.manner}{self._end}"

    @property
    def inverted(self) -> str:
        """The syntactic inversion: manner and verb first."""
        return f"{self.manner} {self.verb} {self.who}{self._end}"

    @property
    def _end(self) -> str:
        return f" to {self.goal}" if self.goal else ""


@dataclass(frozen=True)
class Trade:
    """Somebody gained or lost a thing."""

    who: str
    verb: str
    look: str
    thing: str

    def __str__(self) -> str:
        return f"{self.who} {self.verb} a {self.look} {self.thing}"

    @property
    def follows(self) -> str:
        """What can be inferred: who gained a thing has it, who lost it does not."""
        return self.claim(self.verb in GAINED)

    def claim(self, has: bool) -> str:
        """Return the sentence that its person has its thing, or has not."""
        return f"{self.who} has {'a' if has else 'no'} {self.look} {self.thing}"


@dataclass(frozen=True)
class SentencePair:
    """Two sentences, and whether the second is to the first what a task asks for."""

    first: str
    second: str
    label: int

    @property
    def text(self) -> str:
        """Both sentences, which tell whether the pair is kept for evaluation."""
        return f"{self.first}. {self.second}."


# The text's own pairs of sentences, in small letters, and for each a wrong one.
PRINTED: dict[PairTask, tuple[SentencePair, ...]] = {
    "inverted": (
        SentencePair("the boy ran quickly", "quickly ran the boy", 1),
        SentencePair("the boy ran quickly", "quickly ran the girl", 0),
    ),
    "entailed": (
        SentencePair("john bought a new laptop", "john has a new laptop", 1),
        SentencePair("john bought a new laptop", "john has no new laptop", 0),
    ),
}


def sentence(random: Random, people: Sequence[str], look: str, thing: str) -> str:
    """Return a sentence of a story about two people and a thing.

    Half of the sentences are inverted or are what follows, so that a text has all forms.
    """
    who, other = random.sample(people, 2)
    if random.random() < 0.5:
        trade = Trade(who, random.choice(GAINED + LOST), look, thing)
        return trade.follows if random.random() < 0.5 else str(trade)
    move = Move(who, random.choice(MOVES), random.choice(MANNERS), other)
    return move.inverted if random.random() < 0.5 else str(move)


def story(random: Random, length: int = 2) -> list[str]:
    """Return sentences that follow each other: two people and one thing are in all of them."""
    people, look, thing = random.sample(PEOPLE, 2), random.choice(LOOKS), random.choice(THINGS)
    return [sentence(random, people, look, thing) for _ in range(length)]


def adjacent(random: Random) -> SentencePair:
    """Return two sentences of one story, or of two stories."""
    first, second = story(random)
    label = random.randrange(2)
    return SentencePair(first, second if label else story(random)[1], label)


def another(random: Random, words: tuple[str, ...], *besides: str) -> str:
    """Return one of the words that is none of those."""
    return random.choice([word for word in words if word not in besides])


def inverted(random: Random) -> SentencePair:
    """Return a sentence and its inversion, or that of a sentence which differs.

    Where somebody moves to somebody, both have changed places; else one word is another one.
    """
    who, goal = random.sample(PEOPLE, 2)
    verb, manner = random.choice(MOVES), random.choice(MANNERS)
    move = Move(who, verb, manner, random.choice(("", goal)))
    if random.randrange(2):
        return SentencePair(str(move), move.inverted, 1)
    if move.goal:
        other = Move(goal, verb, manner, who)
    else:
        place = random.randrange(3)
        other = Move(
            goal if place == 0 else who,
            another(random, MOVES, verb) if place == 1 else verb,
            another(random, MANNERS, manner) if place == 2 else manner,
        )
    return SentencePair(str(move), other.inverted, 0)


def entailed(random: Random) -> SentencePair:
    """Return what somebody did with a thing, and a claim that follows from it or does not.

    A wrong claim says the opposite, or the same of somebody else, or of another thing.
    """
    who, other = random.sample(PEOPLE, 2)
    trade = Trade(who, random.choice(GAINED + LOST), random.choice(LOOKS), random.choice(THINGS))
    if random.randrange(2):
        return SentencePair(str(trade), trade.follows, 1)
    has, place = trade.verb in GAINED, random.randrange(3)
    if place == 0:
        return SentencePair(str(trade), trade.claim(not has), 0)
    thing = another(random, THINGS, trade.thing) if place == 1 else trade.thing
    return SentencePair(
        str(trade), Trade(other if place == 2 else who, trade.verb, trade.look, thing).follows, 0
    )


MAKERS = {"adjacent": adjacent, "inverted": inverted, "entailed": entailed}


def grammar_pairs(task: PairTask, seed: int, count: int, held: bool) -> list[SentencePair]:
    """Return pairs for training, or other ones, no two of them alike, that are held out.

    Which of both a pair belongs to follows from its words; what the document prints is held out.
    Of those that are held out, half have label 1, and there may be fewer than `count`.
    """
    random = Random(f"{task} {seed} {held}")
    printed = {pair.text for pairs in PRINTED.values() for pair in pairs}
    drawn = (MAKERS[task](random) for _ in range(20 * count))
    kept = (p for p in drawn if (crc32(p.text.encode()) % 5 == 0 or p.text in printed) == held)
    return halves(kept, count) if held else [*islice(kept, count)]


def halves(pairs: Iterable[SentencePair], count: int) -> list[SentencePair]:
    """Return different pairs, as many with label 0 as with label 1, at most `count` in all."""
    by_label: tuple[dict[str, SentencePair], dict[str, SentencePair]] = ({}, {})
    for pair in pairs:
        by_label[pair.label].setdefault(pair.text, pair)
        if min(map(len, by_label)) >= count // 2:
            break
    half = min(count // 2, *map(len, by_label))
    return [pair for kind in by_label for pair in islice(kind.values(), half)]
