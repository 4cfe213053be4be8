"""A trainer that fits on a thread, with steps that last until a test lets them go on."""

import contextlib
import threading

import torch

import monolith as ml
from monolith.control import ADDRESS_FILE, ControllerClient, ControlOptions
from monolith.data import Batch
from monolith.ops import Ragged
from monolith.table import Zeros
from monolith.table.optimizers import SGD
from monolith.train import Trainer, TrainSettings
from tests.train.roles.job_tasks import wait_for


class Steps(ml.Task):
    """A task with one row, whose weight is smaller by 1 after each step.

    Attributes:
        is_slow: Event; while it is set, the forward of a step waits for `go`.
        num_waiting: Number of steps that have waited.
    """

    features = (ml.Feature("one", dim=1, optimizer=SGD(1.0), initializer=Zeros()),)

    def __init__(self, num_steps=1_000_000):
        super().__init__()
        self.num_steps, self.num_waiting = num_steps, 0
        self.is_slow, self.go = threading.Event(), threading.Semaphore(0)

    def source(self, mode):
        batch = Batch({"one": Ragged.from_lists([[7]])}, labels={"label": torch.zeros(1)})
        return (batch for _ in range(self.num_steps))

    def build(self):
        return torch.nn.Identity()

    def loss(self, model, inputs, batch):
        if self.is_slow.is_set():
            self.num_waiting += 1
            assert self.go.acquire(timeout=60)
        score = inputs.pooled["one"].squeeze(1)
        return score.sum() - score.sum().detach(), score.detach().sigmoid()


class ControlledRun:
    """A fit on a thread.

    Attributes:
        task: Its task.
        client: Client of its controller.
        trainer: Its trainer.
    """

    def __init__(self, folder, **settings):
        self.task = Steps()
        settings = {"checkpoint_dir": str(folder), "save_every": 0, "log_every": 0, **settings}
        self.trainer = Trainer(
            self.task, TrainSettings(**settings), control=ControlOptions(grace_seconds=1.0)
        )
        self.folder, self.error, self.result = folder, None, None
        self._stack = contextlib.ExitStack()

    def _fit(self, hooks):
        try:
            self.result = self.trainer.fit(hooks=hooks)
        except BaseException as error:
            self.error = error

    def start(self, hooks=()):
        self.thread = threading.Thread(target=self._fit, args=(hooks,))
        self.thread.start()
        wait_for(lambda: (self.folder / ADDRESS_FILE).exists() or self.error)
        self.client = self._stack.enter_context(ControllerClient(str(self.folder)))
        return self

    def enter_long_step(self):
        """Return when the run is in a step that lasts until `task.go.release()`."""
        number = self.task.num_waiting
        self.task.is_slow.set()
        wait_for(lambda: self.task.num_waiting > number)

    def leave_long_step(self):
        self.task.is_slow.clear()
        self.task.go.release()

    def stand(self):
        """Stop the run, and return when it stands."""
        self.client.stop()
        wait_for(lambda: self.client.status().workers[0].state.value == "parked")

    def end(self):
        """End the run after its step."""
        self.trainer._loop.stop()
        self.thread.join(60)
        assert not self.thread.is_alive()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.trainer._loop is not None:
            self.leave_long_step()
            self.end()
        self._stack.close()
        self.trainer.close()
