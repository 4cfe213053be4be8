"""Parts of a trainer that ranks refuse, and those that rank 0 has for all."""

import logging

import pytest

from monolith.cluster.data_service import ServiceOptions, ServiceSource
from monolith.control import ControlOptions
from monolith.errors import InvalidArgumentError
from monolith.observe import MemorySink
from monolith.train import TrainSettings
from tests.cluster.ranks.rank_threads import run_ranks
from tests.docs.pages import first_cells, page
from tests.train.ranks.rank_tasks import fit_rank, one_batch, task_of

BATCHES = [one_batch(seed) for seed in range(4)]


def test_a_controller_is_refused():
    with pytest.raises(InvalidArgumentError, match="expected no control with ranks"):
        run_ranks(1, lambda group: fit_rank(group, task_of(BATCHES), control=ControlOptions()))


def test_a_data_service_is_refused():
    task = task_of(BATCHES, source=lambda self, mode: ServiceSource(ServiceOptions("127.0.0.1:1")))
    with pytest.raises(InvalidArgumentError, match="got a data service"):
        run_ranks(1, lambda group: fit_rank(group, task))


def test_an_alert_is_told_once_for_all_ranks(caplog):
    settings = TrainSettings(log_every=1, alerts=("loss>0",))
    with caplog.at_level(logging.WARNING, "monolith.observe.alerts"):
        run_ranks(2, lambda group: fit_rank(group, task_of(BATCHES), settings))
    assert len([line for line in caplog.messages if "loss>0" in line]) == 1


def test_a_sink_gets_the_bytes_of_the_exchange():
    sink = MemorySink()

    def fit(group):
        options = {"metrics": sink} if group.rank == 0 else {}
        fit_rank(group, task_of(BATCHES), TrainSettings(log_every=1), **options)

    run_ranks(2, fit)
    names = {
        cell.strip("`") for cell in first_cells(page("docs/metrics.md"), "| counter of ranks |")
    }
    totals = {name: sink.total(name, {}) for name in sink.names if name.startswith("exchange/")}
    assert totals.keys() == names
    dense = 4 * (9 * 8 + 8 + 8 + 1)  # and a mark for each of 4 parameters, and the wishes
    assert totals["exchange/dense_bytes"] == 2 * (dense + 4 * 4 + 4 * 4)
    assert all(totals[f"exchange/{kind}_bytes"] > 0 for kind in ("key", "row", "gradient"))


def test_one_rank_exchanges_nothing():
    sink = MemorySink()
    run_ranks(1, lambda group: fit_rank(group, task_of(BATCHES), metrics=sink))
    assert sink.total("exchange/row_bytes", {}) == sink.total("exchange/dense_bytes", {}) == 0
