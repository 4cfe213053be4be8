"""What a parameter server takes from a task: its dense parameters and their optimizer."""

from monolith.cluster.job.dense_shard import DenseShard, trained_parameters
from monolith.train.run_state import seed_all
from monolith.train.settings import TrainSettings
from monolith.train.task import Task


def dense_shard(
    task: Task, settings: TrainSettings | None, index: int, num_servers: int
) -> DenseShard:
    """Return the dense parameters of a task that live on one server, with the task's optimizer.

    Their values are those of the chief, which sets them before the first step.

    Args:
        task: Task of the job.
        settings: Options of the training; None takes the defaults.
        index: Number of the server.
        num_servers: Number of servers of the job.
    """
    seed_all(task.train_settings(settings or TrainSettings()).seed)
    model = task.build()
    optimizer = task.optimizer(model)
    return DenseShard(trained_parameters(model, optimizer), optimizer, index, num_servers)
