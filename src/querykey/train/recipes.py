"""Ready configurations, each one command: `qk train NAME`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TrainingRecipe:
    """What a ready configuration trains, and the fields in which it differs from the defaults."""

    says: str
    config: dict[str, Any]


def _recipe(
    name: str,
    says: str,
    data: dict[str, Any],
    model: dict[str, Any],
    objective: str = "causal",
    **more: dict[str, Any],
) -> TrainingRecipe:
    config = {"folder": f"runs/{name}", "data": data, "model": model}
    return TrainingRecipe(says, config | {"objective": {"name": objective}} | more)


def _bert(**more: Any) -> dict[str, Any]:
    return {"name": "bert", **more}


def _sentences(name: str) -> dict[str, Any]:
    """Return pairs of the small grammar, whose words are tokens: a byte tells too little."""
    return {
        "name": name, "tokenizer": "bpe", "vocabulary": 512, "length": 48, "samples": 100000,
    }  # fmt: skip


def _recall(name: str, model: str, how: str) -> TrainingRecipe:
    """Return associative recall with one mechanism, in blocks that are the same for all."""
    return _recipe(
        name, f"the values of keys that were shown among others, {how}",
        {"name": "recall", "length": 64, "queries": 16, "samples": 100000},
        {"name": model, "layers": 2, "width": 64},
        optimizer={"rate": 2e-3, "warmup": 100}, loop={"batch": 256, "steps": 3000},
    )  # fmt: skip


RECIPES: dict[str, TrainingRecipe] = {
    "stdlib": _recipe(
        "stdlib", "a model of bytes on the source of Python's own library",
        {"name": "stdlib", "length": 128}, {"name": "gpt"},
    ),
    "characters": _recipe(
        "characters", "a model of characters on a text, in nanoGPT's setting for a CPU",
        {"name": "text", "tokenizer": "characters"}, {"name": "gpt"},
        optimizer={"warmup": 100},
    ),
    "masked-words": _recipe(
        "masked-words", "BERT's masked words, on Python's own library",
        {"name": "stdlib", "tokenizer": "bpe", "vocabulary": 4096, "length": 64}, _bert(),
        "masked", optimizer={"warmup": 300}, loop={"batch": 64, "steps": 6000},
    ),
    "adjacent": _recipe(
        "adjacent", "whether two sentences of a text are adjacent",
        {"name": "adjacent", "tokenizer": "bpe", "vocabulary": 2048, "length": 96},
        _bert(layers=2, dropout=0.1), "classes",
        optimizer={"warmup": 300}, loop={"batch": 128, "steps": 3000},
    ),
    "words-and-pairs": _recipe(
        "words-and-pairs", "BERT's pretraining: hidden tokens and adjacent sentences at once",
        {"name": "adjacent", "tokenizer": "bpe", "vocabulary": 2048, "length": 96},
        _bert(layers=2, dropout=0.1), "words-and-pairs",
        optimizer={"warmup": 300}, loop={"batch": 128, "steps": 4000},
    ),
    "inverted": _recipe(
        "inverted", "whether a sentence is the inversion of another",
        _sentences("inverted"), _bert(layers=2, width=64, weights="inputs"), "classes",
        optimizer={"warmup": 100}, loop={"batch": 32, "steps": 1500},
    ),
    "entailed": _recipe(
        "entailed", "whether a claim follows from a sentence",
        _sentences("entailed"), _bert(layers=2, width=64, weights="inputs"), "classes",
        optimizer={"warmup": 100}, loop={"batch": 32, "steps": 3000},
    ),
    "snippets": _recipe(
        "snippets", "which package of Python's own library a snippet is from",
        {
            "name": "snippets", "tokenizer": "bpe", "vocabulary": 4096, "length": 64,
            "unlabelled": True,
        },
        _bert(dropout=0.2), "words-and-pairs",
        optimizer={"warmup": 300}, loop={"batch": 256, "steps": 5000},
    ),
    "dates": _recipe(
        "dates", "dates in many formats to ISO 8601",
        {"name": "dates", "length": 40, "samples": 50000}, {"name": "transformer", "layers": 2},
        "translation", optimizer={"warmup": 200}, loop={"batch": 64, "steps": 3000},
    ),
    "german-english": _recipe(
        "german-english", "German to English, on parallel text",
        {"name": "parallel", "tokenizer": "bpe", "vocabulary": 8000, "length": 64},
        {"name": "transformer", "layers": 3, "width": 256, "dropout": 0.3},
        "translation", optimizer={"warmup": 800, "rate": 7e-4},
        loop={"batch": 128, "steps": 5000},
    ),
    "copy": _recipe(
        "copy", "a word, a mark, the word again",
        {"name": "copy", "length": 33, "samples": 50000}, {"name": "llama", "layers": 2},
        loop={"batch": 64},
    ),
    "recall": _recall("recall", "softmax", "by softmax"),
    "recall-quadratic": _recall("recall-quadratic", "quadratic", "by a quadratic kernel"),
    "recall-elu": _recall("recall-elu", "elu", "by the kernel elu + 1"),
    "recall-quadratic-decay": _recall(
        "recall-quadratic-decay", "quadratic-decay", "by a quadratic kernel with learned decay"
    ),
    "mnist": _recipe(
        "mnist", "MNIST by a small vision transformer",
        {"name": "mnist", "shift": 2}, {"name": "vit", "patch": 4, "width": 128, "dropout": 0.1},
        "images",
        optimizer={"warmup": 500}, loop={"batch": 256, "steps": 6000},
    ),
    "digits": _recipe(
        "digits", "scikit-learn's digits by a small vision transformer",
        {"name": "digits"}, {"name": "vit", "patch": 2, "width": 64, "layers": 2}, "images",
        loop={"batch": 64},
    ),
    "autoencoder": _recipe(
        "autoencoder", "generated vectors of 100 features through 20 numbers and back",
        {"name": "vectors"}, {"name": "autoencoder"}, "autoencoding",
        optimizer={"name": "sgd", "momentum": 0.9, "rate": 0.05, "decay": 0.0},
        loop={"batch": 64},
    ),
    "masked-patches": _recipe(
        "masked-patches", "hidden patches of MNIST from the visible ones",
        {"name": "mnist"}, {"name": "masked-patches", "patch": 4, "width": 64}, "hidden-patches",
        loop={"batch": 128},
    ),
}  # fmt: skip
