"""A model's own loss: every answer meets the right label once, and nothing else is counted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from querykey.laws.blaming.guilty_module import guilty_part
from querykey.laws.law import Law, RefusalError
from querykey.laws.private import is_pretrained
from querykey.laws.run import Inputs, Setting
from querykey.laws.runner import Runner
from querykey.laws.trial import Evidence, Outcome, deviation
from querykey.laws.understanding.facts import LossInterface
from querykey.laws.understanding.loss import Asked, LossSums, asked, distinct_labels

SIZE = Setting(batch=3, length=6)
PADS = 3
# By nanoGPT's habit the caller shifts what is called a target; labels are the ids themselves.
SHIFTED_BY_CALLERS = re.compile(r"^(targets?|y|gold)$")
NONE = 1e-9  # of the largest derivative: below that there is none
WORDS = {
    2: "labels are shifted twice",
    -1: "labels are shifted the wrong way",
    0: "labels are not shifted",
}


def returns_a_loss(runner: Runner) -> str:
    """Return why the law does not apply to a model that returns no loss of its own."""
    return "" if runner.facts.loss else "it takes no labels that it returns a loss for"


def interface(runner: Runner) -> LossInterface:
    """Return how the loss is asked for; only models that return one are tried."""
    assert runner.facts.loss is not None
    return runner.facts.loss


@dataclass(frozen=True)
class Pairing:
    """Which label every answer is compared with: its row and place, by the answer's own."""

    labels: dict[tuple[int, int], tuple[int, int]]

    @property
    def shifts(self) -> Counter[int]:
        """How often an answer meets the label so many places further on in its own row."""
        return Counter(p - t for (r, t), (row, p) in self.labels.items() if r == row)

    @property
    def shift(self) -> int | None:
        """By how much labels are shifted; None where that is not the same everywhere."""
        same_row = all(r == row for (r, _), (row, _) in self.labels.items())
        return next(iter(self.shifts)) if same_row and len(self.shifts) == 1 else None


def pairing(call: Asked, labels: torch.Tensor) -> Pairing:
    """Return which label each answer is compared with, read from the derivative by its scores."""
    if call.gradient is None:
        raise RefusalError("its loss has no derivative by scores of words that could be read")
    places: dict[int, list[tuple[int, int]]] = {}
    for r, row in enumerate(labels.tolist()):
        for t, label in enumerate(row):
            places.setdefault(label, []).append((r, t))
    most, met = float(call.gradient.abs().max()), {}
    for r, row in enumerate(call.gradient):
        for t, gradient in enumerate(row):
            if float(gradient.abs().max()) <= NONE * most:
                continue
            if int(gradient.argmin()) not in places:
                raise RefusalError("its loss is no cross-entropy of the labels")
            met[r, t] = places[int(gradient.argmin())]
    return Pairing(_settled(met))


def _settled(met: dict[tuple[int, int], list[tuple[int, int]]]) -> dict:
    """Return one label for every answer where a small vocabulary makes several labels alike.

    A shift that all answers can have in common is the one that they have.
    """
    shifts = [{p - t for row, p in labels if row == r} for (r, t), labels in met.items()]
    common = set.intersection(*shifts) if shifts else set()
    if common:
        step = min(common, key=lambda shift: abs(shift - 1))
        return {(r, t): (r, t + step) for r, t in met}
    return {answer: labels[-1] for answer, labels in met.items()}


def asked_with(runner: Runner, inputs: Inputs, labels: torch.Tensor, setting: Setting) -> Asked:
    """Return what a call with these labels shows."""
    call = asked(runner, {**inputs, interface(runner).name: labels}, setting)
    if call is None:
        raise RefusalError("it returns no loss")
    return call


def shift(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Read from the loss's derivative which label each answer is compared with."""
    inputs = runner.inputs(setting)
    labels = distinct_labels(runner, inputs)
    pairs = pairing(asked_with(runner, inputs, labels, setting), labels)
    yield _judged(runner, setting, pairs)
    if runner.signature.others():
        yield from _from_labels_alone(runner, setting, inputs, labels)


def _judged(runner: Runner, setting: Setting, pairs: Pairing) -> Outcome:
    """Return whether every answer meets the label that it is to predict."""
    name, shift = interface(runner).name, pairs.shift
    evidence = Evidence(module=guilty_part(runner.copies.model, ""))
    if shift is None:
        usual = pairs.shifts.most_common(1)[0][0] if pairs.shifts else 0
        (r, t), (row, p) = next(
            (answer, label) for answer, label in pairs.labels.items()
            if label != (answer[0], answer[1] + usual)
        )  # fmt: skip
        note = (
            f"in the loss the answer at position {t} of row {r} is compared with label {p} of row "
            f"{row}, others with the label {usual} further on in their own row"
        )
        return Outcome(1.0, note, setting, evidence=evidence)
    causal = runner.facts.causal and not runner.signature.others()
    tags = interface(runner).tags is not None
    next_token = causal and not tags
    by_caller = bool(SHIFTED_BY_CALLERS.match(name))
    library = is_pretrained(runner.copies.model)
    right = {int(next_token)} | ({0, 1} if causal and (by_caller or tags) else set())
    # Who calls a plain model with what it calls labels may have shifted them.
    advice = not library and shift in (0, 1) and not tags
    description = WORDS.get(shift, f"labels are shifted by {shift}")
    wanted = "they are to be shifted once" if next_token else "they are not to be shifted"
    note = (
        f"{description} in the loss: the answer at every position is compared with `{name}` "
        f"{abs(shift)} {'before' if shift < 0 else 'after'} it; {wanted}"
    )
    return Outcome(float(shift not in right), note, setting, evidence=evidence, advice=advice)


def _from_labels_alone(
    runner: Runner, setting: Setting, inputs: Inputs, labels: torch.Tensor
) -> Iterator[Outcome]:
    """Yield whether decoder inputs that a model makes from labels are shifted by one place."""
    main, name, place = runner.signature.main.name, interface(runner).name, 2
    rest = {key: value for key, value in inputs.items() if key != main}
    other = labels.clone()
    other[:, place] = labels[:, place].roll(1)
    try:
        scores = [
            runner.take(runner.call({**rest, name: value}, setting), inputs).detach()
            for value in (labels, other)
        ]
    except Exception:
        return  # it wants decoder inputs
    moved = [
        t for t in range(setting.length)
        if deviation(scores[0][:, t], scores[1][:, t])[0] > runner.facts.threshold
    ]  # fmt: skip
    if not moved:
        return
    first = moved[0] - place
    note = (
        f"without decoder inputs label {place} reaches the answer {first} places after it, where 1 "
        "is right"
    )
    evidence = Evidence(module=guilty_part(runner.copies.model, ""))
    yield Outcome(float(first != 1), note, setting, evidence=evidence)


def uncounted(runner: Runner, setting: Setting) -> Iterator[Outcome]:
    """Hide labels, pad rows, and split the batch: the loss keeps to its own normalisation."""
    inputs, ignored = runner.inputs(setting), interface(runner).ignored
    if runner.signature.only:
        raise RefusalError("it takes one number of tokens and no other, so none are padding")
    if ignored is None:
        raise RefusalError("no label was found that says that a place does not count")
    labels = distinct_labels(runner, inputs)
    whole = asked_with(runner, inputs, labels, setting)
    pairs = pairing(whole, labels)
    hidden = with_hidden(labels, ignored)
    call = asked_with(runner, inputs, hidden, setting)
    yield from _derivatives(runner, setting, pairs, call, hidden)
    yield from _normalised(runner, setting, pairs, (whole, labels), (call, hidden))
    yield from _padded(runner, setting, inputs, hidden, call)


def with_hidden(labels: torch.Tensor, ignored: int) -> torch.Tensor:
    """Return labels some of which do not count, more in the first row than in others."""
    hidden = labels.clone()
    hidden[0, 2:] = hidden[1, 4] = hidden[2, 1] = ignored
    return hidden


def _derivatives(
    runner: Runner, setting: Setting, pairs: Pairing, call: Asked, hidden: torch.Tensor
) -> Iterator[Outcome]:
    """Yield how far the loss follows the scores of answers whose labels do not count."""
    assert call.gradient is not None
    silent = [a for a, (row, p) in pairs.labels.items() if int(hidden[row, p]) == _off(runner)]
    sizes = {a: float(call.gradient[a].abs().max()) for a in silent}
    most = float(call.gradient.abs().max()) or 1.0
    r, t = max(sizes, key=lambda a: sizes[a])
    note = (
        f"the loss follows the answer at position {t} of row {r}, whose label is "
        f"{_off(runner)} and is not to be counted"
    )
    evidence = Evidence({"sample": r, "position": t}, module=guilty_part(runner.copies.model, ""))
    yield Outcome(sizes[r, t] / most, note, setting, evidence=evidence)


def _off(runner: Runner) -> int:
    return interface(runner).ignored or 0


def _normalised(
    runner: Runner,
    setting: Setting,
    pairs: Pairing,
    whole: tuple[Asked, torch.Tensor],
    part: tuple[Asked, torch.Tensor],
) -> Iterator[Outcome]:
    """Yield whether labels that do not count are left out of the number that is divided by."""
    full, rest = (_sums(runner, pairs, *case) for case in (whole, part))
    before, after = float(whole[0].loss), float(part[0].loss)
    limit = runner.facts.threshold
    promise = next((n for n, v in full.promises().items() if abs(v - before) <= limit), None)
    if promise is None:
        return  # its normalisation is another one, or more than a cross-entropy is added up
    allowed = {promise: rest.promises()[promise]}
    if promise == "the mean over counted labels":
        allowed["the mean of the rows' means"] = rest.mean_of_means()
    nearest = min(allowed.values(), key=lambda value: abs(value - after))
    note = (
        f"with labels that do not count the loss is {after:.4g}, and {promise} is {nearest:.4g}: "
        f"{after / nearest:.3g} times as much"
    )
    evidence = Evidence(module=guilty_part(runner.copies.model, ""))
    gap = abs(after - nearest) / max(abs(nearest), 1e-30)
    yield Outcome(gap, note, setting, evidence=evidence)


def _sums(runner: Runner, pairs: Pairing, call: Asked, labels: torch.Tensor) -> LossSums:
    """Return the cross-entropies of the labels that count, computed here from the scores."""
    assert call.scores is not None
    logs = call.scores.double().log_softmax(-1)
    rows, counted = [0.0] * len(labels), [0] * len(labels)
    for (r, t), (row, p) in pairs.labels.items():
        if int(labels[row, p]) != _off(runner):
            rows[r] -= float(logs[r, t, labels[row, p]])
            counted[r] += 1
    return LossSums(rows, counted, int((labels != _off(runner)).sum()))


def _padded(
    runner: Runner, setting: Setting, inputs: Inputs, labels: torch.Tensor, call: Asked
) -> Iterator[Outcome]:
    """Yield how much the loss moves when rows are padded on the right by what does not count."""
    masks = runner.facts.masks_over(runner.signature.axis)
    if not masks and not runner.facts.causal:
        return  # it cannot be told what is padding
    padded, wide, longer = with_more_padding(runner, inputs, labels)
    other = asked_with(runner, padded, wide, longer)
    assert call.scores is not None
    if other.scores is None or (
        deviation(call.scores, other.scores[:, : setting.length])[0] > runner.facts.threshold
    ):
        return  # padding changes answers: padding.right tells of it
    gap, _ = deviation(call.loss.reshape(1, 1), other.loss.reshape(1, 1))
    note = (
        f"the loss is {float(call.loss):.4g}, and {float(other.loss):.4g} when {PADS} tokens of "
        "padding whose labels do not count are added to every row"
    )
    yield Outcome(gap, note, longer, evidence=Evidence(module=guilty_part(runner.copies.model, "")))


def with_more_padding(
    runner: Runner, inputs: Inputs, labels: torch.Tensor
) -> tuple[Inputs, torch.Tensor, Setting]:
    """Return inputs and labels with padding on the right of every row, and the setting."""
    setting, axis = SIZE, runner.signature.axis
    longer = Setting(batch=setting.batch, length=setting.length + PADS)
    more = runner.inputs(longer, seed=1)
    padded = runner.signature.edit(
        inputs, lambda value: torch.cat([value, _like(more, value, setting)], 1)
    )
    real = runner.signature.all_real(padded, axis)
    real[:, setting.length :] = False
    padded |= {mask.name: mask.value(real) for mask in runner.facts.masks_over(axis)}
    wide = torch.full((len(labels), longer.length), _off(runner))
    wide[:, : setting.length] = labels
    return padded, wide, longer


def _like(more: Inputs, value: torch.Tensor, setting: Setting) -> torch.Tensor:
    """Return other content for padding, cut from longer inputs of the same form."""
    same = [v for v in more.values() if isinstance(v, torch.Tensor) and v.dtype == value.dtype]
    return same[0][:, setting.length : setting.length + PADS]


def at_three_rows(runner: Runner) -> Iterator[Setting]:
    """Try three rows of six tokens."""
    yield SIZE


LAWS = (
    Law(
        "loss.shift",
        says="In a model's own loss every answer is compared with the label that it predicts.",
        why="Otherwise a model learns to repeat its input, or skips a token (transformers 27517).",
        how="The derivative of the loss by the scores at a place is lowest at the label that is "
        "compared with them; in a causal model that is the next one, else the one at that place.",
        trials=shift,
        applies=returns_a_loss,
        sweep=at_three_rows,
    ),
    Law(
        "loss.padding",
        says="Labels of -100 and padding are counted nowhere in a model's own loss.",
        why="Otherwise the loss of a row depends on how long the others are.",
        how="Labels are hidden and rows padded: the loss has no derivative there, keeps the mean "
        "or sum that it is without them, and does not change with more padding.",
        trials=uncounted,
        applies=returns_a_loss,
        sweep=at_three_rows,
    ),
)
