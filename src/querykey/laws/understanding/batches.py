"""Models that take all tensors of a call in one object: a dict, or one with attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from querykey.laws.subject import Subject
from querykey.laws.understanding.float64 import duplicate
from querykey.laws.understanding.inputs import UnfitError
from querykey.laws.understanding.snapshot import Snapshot
from querykey.targets import Input, TakesBatch, TargetError, argument_names, takes_batch


def taking_a_batch(subject: Subject) -> Subject | None:
    """Return a subject that passes all tensors in one object, if the model takes them so."""
    if subject.forward is not subject.model:
        return None
    batched = _found(subject) if subject.example is None else _told(subject)
    if batched is None:
        return None
    example = {one.name: one for one in batched.inputs}
    return replace(subject, forward=replace(batched, model=subject.model), example=example)


def _found(subject: Subject) -> TakesBatch | None:
    """Return what trying finds, on a copy; what its calls leave behind is undone.

    An UnfitError says what a model raised that takes its tensors so.
    """
    copied = duplicate(subject.model, wide=False)
    snapshot = Snapshot(copied)  # its classes and files keep things, too
    try:
        return takes_batch(copied)
    except TargetError as error:
        raise UnfitError(str(error)) from error
    finally:
        snapshot.restore()


def _told(subject: Subject) -> TakesBatch | None:
    """Return the batch of the inputs that are stated, where none of them is an argument."""
    names = argument_names(subject.model)
    if not isinstance(subject.example, Mapping) or len(names) != 1 or names[0] in subject.example:
        return None
    told = tuple(v for v in subject.example.values() if isinstance(v, Input))
    return TakesBatch(subject.model, names[0], told) if told else None
