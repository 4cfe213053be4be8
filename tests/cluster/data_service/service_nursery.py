"""A data service whose processes are those of the command line, for tests that kill them."""

import contextlib

from monolith.cluster.data_service import ServiceOptions, ServiceSource
from tests.cluster.server_processes import Nursery

TASK = """
import torch
import monolith as ml


class Users(ml.Task):
    features = (ml.Feature("user", dim=2),)
    dense = ("price",)

    def source(self, mode):
        return ml.data.parquet(self.settings.data[mode]).batch(self.settings.batch_size)

    def build(self):
        return torch.nn.Linear(3, 1)

    def loss(self, model, inputs, batch):
        logit = model(inputs.matrix).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, batch.label)
        return loss, logit.sigmoid()
"""


class ServiceNursery:
    """Starts dispatchers and data workers; all are killed at its end."""

    def __init__(self, task):
        self._nursery, self._task = Nursery(), task

    def dispatcher(self, workers=2, *options):
        words = ["--workers", workers, *options]
        return self._nursery.run(words, command=["data-service", "dispatcher"])

    def worker(self, dispatcher, data, *options):
        words = [self._task, "--dispatcher", dispatcher, "--data", data]
        words += ["--set", "batch_size=5", *options]
        return self._nursery.run(words, command=["data-service", "worker"])

    def start(self, data, num_workers=2, **options):
        """(source, dispatcher, workers) of a new service."""
        dispatcher = self.dispatcher(num_workers)
        workers = [self.worker(dispatcher.address, data) for _ in range(num_workers)]
        return self.source(dispatcher.address, **options), dispatcher, workers

    @staticmethod
    def source(address, **options):
        given = {"away_seconds": 0.3, "timeout_seconds": 30.0, **options}
        return ServiceSource(ServiceOptions(address, **given))

    def close(self):
        self._nursery.close()


@contextlib.contextmanager
def service_nursery(folder):
    """A nursery of data services of the task `Users`."""
    task = folder / "users.py"
    task.write_text(TASK)
    nursery = ServiceNursery(task)
    try:
        yield nursery
    finally:
        nursery.close()
