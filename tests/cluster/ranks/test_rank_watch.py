"""Signs of life, and a store whose process stands still."""

import threading

import pytest
import torch.distributed as dist

from monolith.cluster.ranks import rank_watch
from monolith.cluster.ranks.rank_watch import RankWatch


class StandingStore:
    """A store that gives no answer after `stand`, as that of a stopped process."""

    def __init__(self):
        self._store, self._is_open = dist.HashStore(), threading.Event()
        self._is_open.set()
        self.stand, self.go_on = self._is_open.clear, self._is_open.set

    def __getattr__(self, name):
        def call(*arguments):
            self._is_open.wait(60)
            return getattr(self._store, name)(*arguments)

        return call


@pytest.fixture
def store(monkeypatch):
    monkeypatch.setattr(rank_watch, "_ANSWER_SECONDS", 0.2)
    store = StandingStore()
    yield store
    store.go_on()


def test_a_store_that_stands_still_ends_a_wait_with_a_reason(store):
    first, second = (RankWatch(store, rank, 2, is_host=False) for rank in range(2))
    store.stand()
    assert "rank 0 is gone or stands still" in second.explain("dense", "no end")
    assert second.reason == second.tell("later")
    second.close()
    store.go_on()
    first.close()


def test_ranks_that_are_late_are_told_from_those_that_came(store):
    watches = [RankWatch(store, rank, 3, is_host=False) for rank in range(3)]
    watches[0].begun["dense"] = 2
    watches[1].begun["dense"] = 1
    for watch in watches:
        watch._beat()
    assert watches[0].late_ranks("dense") == [1, 2]
    assert watches[1].late_ranks("dense") == [2]
    for watch in watches:
        watch.close()
