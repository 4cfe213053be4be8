"""Impressions that are forgotten."""

import numpy as np

from monolith.data.stream.join.impressions import Impressions


def test_forgetting_keeps_what_is_remembered(monkeypatch):
    monkeypatch.setattr("monolith.data.stream.join.impressions._LEAST_FORGOTTEN", 2)
    impressions = Impressions()
    keys = np.array([7, 8, 9, 7])
    impressions.add(keys, np.array([0, 5, 1, 6]), 3, np.arange(4))
    impressions.kinds[1] = 6
    impressions.forget(before=1)
    assert len(impressions) == 4  # too few to be worth it
    impressions.forget(before=5)
    assert impressions.key.tolist() == [8, 7]
    assert impressions.kinds.tolist() == [6, 0]
    assert impressions.find(np.array([7, 8, 9])).tolist() == [1, 0, -1]
    impressions.add(np.array([9]), np.array([8]), 4, np.array([0]))
    assert impressions.find(np.array([9])).tolist() == [2]
