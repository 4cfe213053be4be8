"""Evaluations at a cut of tables on server processes, while another client pushes."""

import threading

import pytest
import torch

from monolith.features import cut_tables
from monolith.table.routing import PartitionRouting
from monolith.train import Trainer, TrainSettings
from tests.cluster.server_processes import connect, running
from tests.suites.table_base import assert_same_bits
from tests.train.tasks import Clicks, clicks

pytestmark = [pytest.mark.dist, pytest.mark.thorough]

HELD_OUT = clicks(5, seed=5)
KEYS = torch.arange(50)


class Pushes:
    """A second client of the servers, which changes all rows on a thread until its block ends."""

    def __init__(self, addresses, tables):
        self._servers = connect(addresses, worker=(1, 2))
        routing = PartitionRouting(len(addresses))
        self._tables = [self._servers.table(t.config, routing, lambda: 100) for t in tables]
        self._num_rounds, self._is_ending = 0, False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self._is_ending:
            for table in self._tables:
                table.apply_gradients(KEYS, torch.ones(len(KEYS), table.dim))
            with self._changed:
                self._num_rounds += 1
                self._changed.notify_all()

    def wait(self):
        """Wait until all rows have changed from now on."""
        with self._changed:
            number = self._num_rounds + 2
            assert self._changed.wait_for(lambda: self._num_rounds >= number, 60)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._is_ending = True
        self._thread.join(60)
        self._servers.close()


def tables_of(trainer):
    return trainer.features.tables.values()


def cut_bytes(trainer):
    return sum(table.memory_report()["cut_bytes"] for table in tables_of(trainer))


def while_pushed(trainer, addresses, seen, error=None):
    """Batches of an evaluation that has begun, each after all rows have changed."""
    with Pushes(addresses, tables_of(trainer)) as pushes:
        for batch in HELD_OUT:
            pushes.wait()
            seen.append(cut_bytes(trainer))
            yield batch
            if error is not None:
                raise error


@pytest.fixture(scope="module")
def shared():
    """(trainer, addresses) of a trainer that shares two server processes with other clients."""
    task = Clicks(clicks(20), HELD_OUT)
    with (
        running(2, worker=(0, 2)) as (_, addresses, servers),
        Trainer(task, TrainSettings(), servers, clock=lambda: 100) as trainer,
    ):
        trainer.fit()
        yield trainer, addresses


def test_the_figures_are_those_of_the_moment_of_the_cut(shared):
    trainer, addresses = shared
    before, seen = trainer.evaluate(at_cut=False), []
    assert trainer.evaluate() == before  # at a cut, for others may push
    assert trainer.evaluate(while_pushed(trainer, addresses, seen)) == before
    assert min(seen) > 0
    assert cut_bytes(trainer) == 0
    assert trainer.evaluate() != before


def test_without_a_cut_the_pushes_show(shared):
    trainer, addresses = shared
    before, seen = trainer.evaluate(at_cut=False), []
    assert trainer.evaluate(while_pushed(trainer, addresses, seen), at_cut=False) != before
    assert seen == [0] * len(HELD_OUT)


def test_an_error_in_the_middle_closes_the_cuts(shared):
    trainer, addresses = shared
    for _ in range(5):  # more than may be open
        batches = while_pushed(trainer, addresses, seen := [], OSError("disk"))
        with pytest.raises(OSError, match="disk"):
            trainer.evaluate(batches)
        assert min(seen) > 0
        assert cut_bytes(trainer) == 0


def test_two_evaluations_and_a_save_have_cuts_at_once(shared, tmp_path):
    trainer, addresses = shared
    before = trainer.evaluate()
    engine = trainer.features.pending.engine
    with cut_tables(engine) as one, cut_tables(engine) as other:
        assert trainer.evaluate(while_pushed(trainer, addresses, [])) == before
        trainer.save(tmp_path)
        ids = HELD_OUT[0].features
        matrices = [cut.lookup(ids, None, None, "zeros")[0] for cut in (one, other)]
        assert_same_bits(*matrices)
    assert cut_bytes(trainer) == 0
