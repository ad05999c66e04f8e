"""Faults of one line in training loops: the right law names each, and none its corrected twin."""

import pytest
import torch
from tests.laws.training import huggingface, lightning_loops, other_loops, plain, wrapped_loops

import querykey as qk

STYLES = {
    "plain": plain,
    "other": other_loops,
    "wrapped": wrapped_loops,
    "Trainer": huggingface,
    "Lightning": lightning_loops,
}
SLOW = {style: () if style == "plain" else pytest.mark.slow for style in STYLES}
CASES = [
    pytest.param(style, name, id=f"{style}: {name}", marks=SLOW[style])
    for style, loops in STYLES.items()
    for name in loops.FAULTS
]
LOOPS = [
    pytest.param(loop, law, id=f"{style}: {law}, {loop.__name__}", marks=SLOW[style])
    for style, loops in STYLES.items()
    for loop, law in dict.fromkeys(loops.FAULTS.values())
]
ADVICE = {"training.saturation"}  # laws that accuse nobody


def report(loop, fault):
    torch.manual_seed(0)
    return qk.check_training(lambda: loop(fault))


# Torch warns of some of the faults too.
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step", "ignore:The epoch param")
@pytest.mark.parametrize(("style", "fault"), CASES)
def test_a_fault_is_named_by_its_law_alone(style, fault):
    loop, law = STYLES[style].FAULTS[fault]
    found = report(loop, fault)
    verdict = "advice" if law in ADVICE else "violated"
    named = [finding for finding in found.laws if finding.verdict in ("violated", "advice")]
    assert [(finding.law, finding.verdict) for finding in named] == [(law, verdict)], str(found)
    assert not [finding for finding in found.laws if finding.verdict == "error"]


@pytest.mark.parametrize(("loop", "law"), LOOPS)
def test_the_corrected_loop_is_left_alone(loop, law):
    found = report(loop, "")
    assert not [f for f in found.laws if f.verdict in ("violated", "advice", "error")], str(found)
    assert found.law(law).verdict == "holds"
