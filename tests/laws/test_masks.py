"""Padding masks are found by what they do: by any name, of any form, and nothing else is one."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from querykey.laws import check

WORDS, WIDTH, HEADS = 41, 12, 2


class Tagger(nn.Module):
    """Two layers of full attention; the second hides nothing where `faulty`."""

    def __init__(self, faulty=False):
        super().__init__()
        self.faulty, self.hidden = faulty, nn.Parameter(torch.randn(WIDTH))
        self.embed, self.score = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.kinds = nn.Embedding(3, WIDTH)
        self.maps = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))

    def tagged(self, x, seen=None, added=None):
        for index, layer in enumerate(self.maps):
            q, k, v = (t.unflatten(-1, (HEADS, -1)).mT.mT for t in layer(x).chunk(3, -1))
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            scores = q @ k.mT / 2
            if not (self.faulty and index == 1):
                scores = scores if added is None else scores + added
                scores = scores if seen is None else scores.masked_fill(~seen, -1e9)
            x = x + (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return self.score(x)


def taking(name, body, default="=None"):
    """Return a subclass whose forward takes one more argument of this name."""
    names = {"torch": torch, "F": F}
    exec(f"def forward(self, ids, {name}{default}):\n    told = {name}\n{body}", names)
    return type("Net", (Tagger,), {"forward": names["forward"]})


HIDES = """
    seen = None if told is None else {}
    return self.tagged(self.embed(ids), seen)
"""
REAL, PADDED = (
    HIDES.format("told.bool()[:, None, None]"),
    HIDES.format("~told.bool()[:, None, None]"),
)
ROW = HIDES.format("told.bool()")
ADDED = "\n    return self.tagged(self.embed(ids), added=told)\n"
COUNTED = HIDES.format("(torch.arange(ids.size(1)) < told[:, None])[:, None, None]")
LOST = "\n    return self.tagged(self.embed(ids))\n"


def padding(model, example=None):
    return check(model, example, laws=["padding"], weights="random")


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("observed", REAL),
        ("m", REAL),
        ("mask_of_items", REAL),
        ("attn_mask", ROW),
        ("attn_bias", ADDED),
        ("ignored", PADDED),
        ("pads", PADDED),
        ("n_frames", COUNTED),
        ("src_lengths", COUNTED),
    ],
)
def test_a_mask_of_any_name_and_form_is_found(name, body):
    kind = taking(name, body)
    report = padding(kind(faulty=True))
    assert report.about["padding mask"].startswith(name)
    assert report.law("padding.right").verdict == "violated"
    assert padding(kind()).law("padding.right").verdict == "holds"


def test_what_is_called_a_mask_and_divides_by_all_tokens_is_told():
    body = """
    x = self.embed(ids) if told is None else self.embed(ids) * told[..., None]
    return self.score(x.mean(1) {})
"""
    right = "* (1 if told is None else ids.size(1) / told.sum(1, keepdim=True))"
    assert padding(taking("element_mask", body.format(""))()).violations
    assert not padding(taking("element_mask", body.format(right))()).violations


LIKE_A_MASK = {
    "masked": "x = x if told is None else torch.where(told.bool()[..., None], self.hidden, x)",
    "corrupted": "x = x if told is None else torch.where(told.bool()[..., None], self.hidden, x)",
    "noise_mask": "x = x if told is None else x * told[..., None]",
    "shares": "x = x if told is None else x * told[..., None]",
    "speaker": "x = x if told is None else x + self.kinds(told.long()) * (told != 0)[..., None]",
    "summary": "x = x if told is None else x + x[told.bool()].mean(0)",
}


@pytest.mark.parametrize("name", LIKE_A_MASK)
def test_what_says_something_else_of_tokens_is_no_mask(name):
    kind = taking(
        name, f"    x = self.embed(ids)\n    {LIKE_A_MASK[name]}\n    return self.tagged(x)"
    )
    report = padding(kind())
    assert report.about["padding mask"] == "none"
    assert {finding.verdict for finding in report.laws} == {"not-applicable"}


@pytest.mark.parametrize(
    ("name", "verdict"),
    [("words_mask", "advice"), ("valid", "violated"), ("nonpad", "violated"), ("extra", None)],
)
def test_a_mask_that_nothing_reads_is_told(name, verdict):
    finding = padding(taking(name, LOST)()).law("padding.right")
    assert finding.verdict == (verdict or "not-applicable")
    if verdict == "advice":
        assert finding.note == (
            "nothing that was passed for `words_mask` changes an answer, so it hides nothing"
        )


IDS = torch.arange(18).view(2, 9)


@pytest.mark.parametrize(
    ("body", "mask"),
    [
        (REAL, None),
        (REAL, torch.ones(2, 9, dtype=torch.bool)),
        (HIDES.format("~told[:, None, None]"), torch.zeros(2, 9, dtype=torch.bool)),
        (HIDES.format("(told == 0)[:, None, None]"), None),
        (ROW, torch.ones(2, 1, 1, 9, dtype=torch.bool)),
        (HIDES.format("told == 1"), torch.ones(2, 1, 1, 9, dtype=torch.long)),
        (HIDES.format("told[:, None, None]"), torch.ones(2, 9, dtype=torch.bool)),
    ],
)
def test_a_mask_that_must_be_given_is_read_as_it_is_meant(body, mask):
    kind = taking("mask", body, default="")
    example = None if mask is None else {"ids": IDS, "mask": mask}
    assert padding(kind(faulty=True), example).law("padding.right").verdict == "violated"
    assert padding(kind(), example).law("padding.right").verdict == "holds"


@pytest.mark.parametrize("body", [REAL, PADDED, HIDES.format("(told == 0)[:, None, None]")])
def test_a_mask_of_any_name_that_must_be_given_is_found(body):
    kind = taking("chosen", body, default="")
    report = padding(kind(faulty=True))
    assert report.about["padding mask"].startswith("chosen")
    assert report.law("padding.right").verdict == "violated"
    assert padding(kind()).law("padding.right").verdict == "holds"


THROWN_AWAY = """
    scores = torch.zeros(len(ids), 2, ids.size(1), ids.size(1))
    if told is not None:
        {}
    return self.tagged(self.embed(ids))
"""
LOSE = {
    "fills a copy": "scores.masked_fill(told[:, None, None] == 0, -1e9)",
    "fills and does not use": "scores[(told == 0)[:, None, None].expand_as(scores)] = -1e9",
    "adds to nothing": "scores = scores + (1.0 - told[:, None, None].double()) * -1e9",
}


@pytest.mark.parametrize("way", LOSE)
@pytest.mark.parametrize("default", ["=None", ""])
def test_a_mask_of_any_name_that_is_thrown_away_is_told(way, default):
    finding = padding(taking("chosen", THROWN_AWAY.format(LOSE[way]), default)()).law(
        "padding.right"
    )
    assert finding.verdict == "advice"
    assert finding.note.startswith("nothing that was passed for `chosen` changes an answer")


def test_ids_of_segments_beside_the_tokens_are_no_mask():
    body = "\n    return self.tagged(self.embed(ids) + self.kinds(told.clamp(max=2)))\n"
    report = padding(taking("half", body, default="")())
    assert report.about["padding mask"] == "none"
    assert {finding.verdict for finding in report.laws} == {"not-applicable"}


class Blocks(nn.Module):
    """Means of blocks, of their real tokens where a mask tells, after a look at both neighbours."""

    def __init__(self):
        super().__init__()
        self.embed, self.score = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.near = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, ids, mask=None):
        x = self.near(self.embed(ids).mT).mT
        if mask is not None:
            x = torch.where(mask[..., None], x, 0.0)
        count = ids.size(1) if mask is None else mask.sum(1).clamp(min=1)[:, None, None] + 1
        return self.score(x * (1 + x.sum(1, keepdim=True) / count))


def test_a_mask_is_not_read_the_wrong_way_because_it_then_hides_all():
    report = padding(Blocks())
    assert "marks padding" not in report.about["padding mask"]
    assert report.law("padding.right").verdict != "holds"


class Pairs(nn.Module):
    """A translator whose masks must be given, and are called as nobody calls them."""

    def __init__(self, hides=True):
        super().__init__()
        self.embed, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.net = nn.Transformer(WIDTH, HEADS, 1, 1, 24, 0.0, batch_first=True)
        self.score, self.hides = nn.Linear(WIDTH, WORDS), hides

    def read(self, ids):
        return self.embed(ids) + self.place(torch.arange(ids.size(1)))

    def forward(self, src, tgt, src_m, tgt_m):
        later = torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool).triu(1)
        padded = {"tgt_key_padding_mask": tgt_m == 0, "src_key_padding_mask": src_m == 0}
        beside = src_m == 0 if self.hides else None
        return self.score(
            self.net(
                self.read(src), self.read(tgt), tgt_mask=later, memory_key_padding_mask=beside,
                **padded,
            )
        )  # fmt: skip


@pytest.mark.parametrize("hides", [True, False])
def test_two_masks_that_must_be_given_are_told_apart(hides):
    report = check(Pairs(hides), laws=["padding", "causality", "vocabulary"], weights="random")
    assert (report.kind, report.about["padding mask"]) == (
        "encoder-decoder",
        "src_m (1 marks a real token), tgt_m (1 marks a real token)",
    )
    broken = {finding.law for finding in report.violations}
    assert broken == (set() if hides else {"padding.right", "padding.gradient"})


@pytest.mark.parametrize("body", [REAL, PADDED])
def test_a_mask_that_is_meant_against_its_name_is_told_so(body):
    finding = padding(taking("key_padding_mask", body)()).law("padding.right")
    assert finding.verdict == ("violated" if body is REAL else "holds")
    if body is REAL:
        assert "it hides where there is none: if that is meant, state all inputs" in finding.note
