"""Attention over (positions, features): a model whose whole input is one sample."""

from __future__ import annotations

import re
from dataclasses import replace

import torch

from querykey.laws.run import PLAIN
from querykey.laws.subject import Subject
from querykey.laws.understanding.copies import ModelCopies
from querykey.laws.understanding.signature import CallSignature

NAMES = re.compile(r"attention|attn|quer(y|ies)", re.I)


def is_one_sample(copies: ModelCopies, signature: CallSignature) -> bool:
    """Return whether what was made up as rows of features are the tokens of one sample.

    Rows that answer to each other would be a fault if somebody had said that they are rows; here
    nobody did, and the model is made of attention.
    """
    made_up = copies.subject.example is None and copies.subject.forward is copies.model
    axes = signature.main.axes
    if not made_up or len(signature.inputs) != 1 or len(axes) != 2 or signature.sequential:
        return False
    names = [type(m).__name__ for m in copies.model.modules()]
    names += [name for name, _ in copies.model.named_parameters()]
    if signature.main.kind != "features" or not any(map(NAMES.search, names)):
        return False
    inputs, other = (signature.draw(3, {}, seed, copies.dtype) for seed in (0, 1))
    mixed = signature.with_rows(inputs, other, [1, 2])
    with torch.no_grad():
        first, second = (
            signature.slot.take(copies.call(arguments, PLAIN), 3)[0]
            for arguments in (inputs, mixed)
        )
    return not torch.allclose(first, second)


def one_by_one(subject: Subject, signature: CallSignature) -> Subject:
    """Return a subject that takes (batch, positions, features), and calls the model row by row."""
    model = subject.model

    def forward(x):
        return torch.stack([model(sample) for sample in x])

    width = signature.main.axes[-1]
    assert isinstance(width, int)
    return replace(subject, forward=forward, example=torch.zeros(2, 7, width))
