"""How many batches an epoch of a training loop has, and how many epochs have ended."""

from __future__ import annotations

from querykey.laws.training.events import Epoch
from querykey.laws.training.recording import Recording


def batches_per_epoch(recording: Recording) -> int:
    """Return how many batches an epoch has: the length of a loader, or where batches come again."""
    lengths = [
        event.length
        for event in recording.of(Epoch)
        if event.length and _is_trained(event, recording)
    ]
    if lengths:
        return lengths[0]
    batches = [f.batch for f in recording.forwards if f.used]
    again = [i for i, batch in enumerate(batches) if i and batch == batches[0]]
    return again[0] if again and again[0] > 1 else 0


def _is_trained(epoch: Epoch, recording: Recording) -> bool:
    """Return whether forward passes that are trained follow, before another loader begins."""
    later = [e for e in recording.events if e.order > epoch.order]
    for event in later:
        if isinstance(event, Epoch):
            return False
        if type(event).__name__ == "Forward" and getattr(event, "used", False):
            return True
    return False


def whole_epochs(recording: Recording) -> int:
    """Return how many epochs ended before the last training pass."""
    length = batches_per_epoch(recording)
    passes = [f for f in recording.forwards if f.used]
    return (len(passes) - 1) // length if length else 0
