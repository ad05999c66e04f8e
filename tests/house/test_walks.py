"""How many files a reader must open to follow a call, and in which direction the call goes."""

import pytest
from tools import walks

MOST = {"attend": 14, "generate": 17, "ag backward": 3}


@pytest.mark.slow
@pytest.mark.parametrize("name", MOST)
def test_a_walk_is_short(name):
    files = walks.WALKS[name]().files
    assert 0 < len(files) <= MOST[name], files


@pytest.mark.slow
def test_generating_never_goes_from_attention_back_up_into_backends():
    assert walks.generate().between("attention", "backends") == []


def test_the_tracer_sees_threads_and_directions():
    import threading

    import numpy as np

    import querykey as qk

    x = np.ones((1, 2, 3, 4))
    results = []

    def call():
        thread = threading.Thread(target=lambda: results.append(qk.attend(x, x, x)))
        thread.start()
        thread.join()

    walk = walks.trace(call)
    assert len(results) == 2
    assert walk.files[0] == "backends/dispatch.py"
    assert "attention/reference.py" in walk.files
    assert walk.between("backends", "attention")
    assert walk.between("attention", "backends") == []
