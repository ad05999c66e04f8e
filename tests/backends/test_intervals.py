"""Where documents stand once each is in one piece, against loops over the ids."""

import pytest
import torch

from querykey.backends.triton.intervals import intervals, kept_intervals

IDS = torch.tensor([[3, 3, 1, 1, 1, 3, 0], [5, 5, 5, 7, 8, 8, 9]])
REAL = torch.tensor([[1, 1, 0, 1, 1, 1, 0], [0, 1, 1, 0, 1, 1, 1]]).bool()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("real", [None, REAL])
def test_every_place_against_loops(causal, real):
    found = intervals(IDS, real, causal)
    for row, ids in enumerate(IDS.tolist()):
        order = sorted(range(len(ids)), key=lambda token: ids[token])  # tokens of an id in order
        assert found.order[row].tolist() == order
        lengths = [ids.count(each) for each in ids]
        assert found.facts[row].tolist() == [max(lengths), int(order != list(range(len(ids))))]
        for place, token in enumerate(order):
            same = [p for p, other in enumerate(order) if ids[other] == ids[token]]
            seen = [p for p in same if p <= place or not causal]
            if real is not None:
                seen = [p for p in seen if real[row, order[p]]]
            expected = [same[0], same[-1] + 1, len(seen)]
            expected += [] if real is None else [int(real[row, token])]
            assert found.table[:, row, place].tolist() == expected


def test_documents_are_found_once_until_the_ids_are_written_to():
    ids, batch = IDS.clone(), torch.Size([2])
    first, facts = kept_intervals(ids, batch, True)
    assert facts == (3, True)
    assert kept_intervals(ids, batch, True)[0] is first
    assert kept_intervals(ids, batch, False)[0] is not first
    ids[0] = 4
    again, facts = kept_intervals(ids, batch, False)
    assert facts == (7, False)  # by row: 7 and 3 tokens, and none of either has moved
    assert again.table[1, 0].tolist() == [7] * 7
    with torch.inference_mode():
        unknown = torch.zeros(5, dtype=torch.int64)  # of which nobody knows when it is written to
        one, two = (kept_intervals(unknown, batch, True)[0] for _ in range(2))
    assert one is not two
    assert one.order.shape == (2, 5)
