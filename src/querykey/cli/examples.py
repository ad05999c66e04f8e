"""Calls of each verb to copy, which its help ends with."""

from __future__ import annotations

# What a call does, and the call.
EXAMPLES = {
    "check": (
        ("your own model, which a function of model.py returns", "qk check model.py:make"),
        ("some of the laws, on an architecture by name", "qk check hf:gpt2 --law causality"),
        ("with a script that shows every breach", "qk check model.py:make --repro shown"),
        ("a function that trains a few steps", "qk check --training train.py:run"),
    ),
    "cost": (
        ("formulas in batch and seq", "qk cost hf:gpt2"),
        ("numbers", "qk cost hf:llama num_hidden_layers=80 --at batch=1,seq=4096"),
        ("your own model and its input", 'qk cost model.py:make --input "x=array(n,64)"'),
        ("one new token after a prompt", "qk cost hf:gpt2 --phase decode"),
    ),
    "demo": (("no arguments, and no download", "qk demo"),),
    "generate": (
        ("the likeliest tokens", 'qk generate my-model --prompt "Once upon a time"'),
        (
            "tokens that are drawn",
            'qk generate my-model --prompt "Once" --temperature 0.8 --seed 1',
        ),
    ),
    "lab": (
        ("the experiments, with the question of each", "qk lab"),
        ("two of them, in seconds", "qk lab argmax saturation --quick"),
    ),
    "laws": (
        ("every law in a line", "qk laws"),
        ("three of them in full", "qk laws causality"),
    ),
    "report": (("a page in the folder of a run", "qk report runs/copy"),),
    "targets": (
        ("the ways to name a model, and the presets", "qk targets"),
        ("modules, inputs and outputs of two models", "qk targets hf:bert:causal gpt"),
    ),
    "train": (
        ("all recipes, data sets and flags", "qk train --list"),
        ("a recipe, with other values for two fields", "qk train copy --steps 20 --layers 1"),
        ("your own configuration, or its run continued", "qk train config.toml"),
        ("four steps under the laws of training", "qk train stdlib --check"),
    ),
}


def examples_of(verb: str) -> str:
    """Return the examples of a verb as the Markdown list that ends its help."""
    lines = [f"- {meaning}: `{call}`" for meaning, call in EXAMPLES[verb]]
    return "\n".join(["Examples:", "", *lines])
