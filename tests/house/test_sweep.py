"""Every public name, with every kind of bad value: our refusal, or the reference's answer."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.house import sweep, sweep_models, sweep_rooms, sweep_tools

import querykey as qk
import querykey.ag as ag

CALLS = sweep.GOOD | sweep_rooms.GOOD | sweep_models.GOOD | sweep_tools.GOOD
REFUSED = sweep.LOADS | sweep_rooms.REFUSED | sweep_tools.REFUSED  # whose good call is refused
TAKES = sweep.TAKES | sweep_rooms.TAKES | sweep_models.TAKES | sweep_tools.TAKES
CASES = list(sweep.cases(CALLS, REFUSED, TAKES))
NAMES = list(CALLS)
# What still raises an error of another library: (argument, value) by name. It may only shrink.
KNOWN_FILE = Path(__file__).with_name("sweep_known.json")
KNOWN = {
    name: {(argument, what) for argument, what in pairs}
    for name, pairs in json.loads(KNOWN_FILE.read_text(encoding="utf-8")).items()
}


def test_every_public_name_has_a_case():
    public = set(qk._HOME) - sweep.APART
    assert public <= set(NAMES)
    assert {f"ag.{name}" for name in set(ag.__all__) - sweep.AG_APART} <= set(NAMES)
    for rooms in (sweep_rooms, sweep_models, sweep_tools):
        for room, module in rooms.ROOMS.items():
            names = set(module.__all__) - rooms.APART[room]
            assert {f"{room}.{name}" for name in names} <= set(NAMES)
    assert len(CASES) >= 2000


def plain(answer):
    """The arrays of an answer as NumPy's, in order."""
    if isinstance(answer, torch.Tensor):
        return [] if answer.is_meta else [answer.detach().to(torch.float64).numpy()]
    if isinstance(answer, ag.Tensor):
        return [np.asarray(answer.data)]
    if isinstance(answer, np.ndarray):
        return [answer]
    if isinstance(answer, list | tuple):
        return [array for part in answer for array in plain(part)]
    return []


def outcome(name, arguments):
    """The answer, or the refusal; any other exception is what the sweep looks for."""
    function, good = CALLS[name]()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            return function(**(good | arguments))
        except qk.QuerykeyError as error:
            return error


def reference(name, arguments):
    """What the reference computes in float64 for the arguments of attention; None elsewhere."""
    _, good = CALLS[name]()
    given = good | arguments
    arrays = [given.get(n) for n in "qkv"]
    if not name.startswith("attend") or not all(isinstance(x, torch.Tensor) for x in arrays):
        return None
    wide = {n: given[n].double() for n in "qkv"}
    options = {n: given[n] for n in ("mechanism", "mask", "start", "decay", "bias") if n in given}
    for n in ("decay", "bias"):
        if isinstance(options.get(n), torch.Tensor):
            options[n] = options[n].double()
    for n, kind in (("real", qk.Padding), ("seen", qk.Dense), ("documents", qk.Documents)):
        if n in given:
            options["mask"] = kind(given[n])
    return qk.attend(**wide, **options, backend="reference")


def judged(case):
    """None where the case ends well; else what is wrong."""
    arguments = {case.argument: case.value}
    try:
        answer = outcome(case.name, arguments)
    except Exception as error:
        return f"raised {type(error).__name__}: {str(error)[:150]}"
    if isinstance(answer, qk.QuerykeyError):
        text = str(answer)
        if case.expected is sweep.SAME:
            return f"refused what is good: {text[:150]}"
        if not text.strip() or "Traceback" in text or any(ord(c) < 32 and c != "\n" for c in text):
            return f"refused in no sentence: {text[:150]!r}"
        return None
    if case.expected is sweep.ERROR:
        return f"answered {str(answer)[:100]!r}"
    if case.expected is sweep.SAME:
        _, good = CALLS[case.name]()
        want = outcome(case.name, good)
        for one, other in zip(plain(answer), plain(want), strict=True):
            if not np.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True):
                return "gave another answer"
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = reference(case.name, arguments)
    if want is not None and not answer.is_meta:
        scale = float(want[want.isfinite()].abs().max()) if want.isfinite().any() else 1.0
        low = answer.dtype in (torch.float16, torch.bfloat16)
        limit = (0.03 if low else 1e-4) * max(scale, 1.0)
        same = torch.isclose(answer.double(), want, rtol=0, atol=limit, equal_nan=True)
        fits = want.abs() < torch.finfo(answer.dtype).max
        if case.what in sweep.BEYOND:  # NaN says that the range of floats was left
            fits &= ~answer.isnan()
        if not bool((same | ~fits).all()):
            return "differs from the reference"
    return None


@pytest.mark.parametrize("name", NAMES)
def test_nothing_passes_in_silence(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, mended = [], []
    for case in CASES:
        if case.name != name:
            continue
        problem, known = judged(case), (case.argument, case.what) in KNOWN.get(name, ())
        if problem is not None and not known:
            found.append(f"{case.argument} is {case.what}: {problem}")
        elif problem is None and known:
            mended.append(f"{case.argument} is {case.what}")
    assert not found, "\n".join([f"{len(found)} of {name}", *found])
    assert not mended, f"take these out of sweep_known.json: {mended}"
