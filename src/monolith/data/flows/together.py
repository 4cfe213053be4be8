"""`FlowBatches`: batches of several pipelines that are read together."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from monolith.data.batches import Batches
from monolith.data.cursor import State, enable_read_ahead
from monolith.data.flows.flow_reader import share
from monolith.data.pipeline import Pipeline
from monolith.errors import FailedPreconditionError

if TYPE_CHECKING:
    from typing_extensions import Self

_VERSION = 1


class FlowBatches(Mapping[str, Batches]):
    """Iterations over several pipelines by name; flows of one split read their source once.

    Samples wait until the pipeline of their flow is read, at most `max_waiting` of the split before
    the next block of the source. Each iteration may be read by another thread. `close` and `with`
    close all iterations; an iteration that is closed alone receives no more samples.

    Args:
        pipelines: pipelines by name.
        state: `state_dict` of an earlier object; None begins at the start.
        patience: seconds that a pipeline waits for the reader of another pipeline, for which too
            many samples wait; needed only if several threads read.

    Raises:
        FailedPreconditionError: the state belongs to other pipelines. While iterating: too many
            samples wait for another pipeline.

    Example:
        >>> from monolith import data
        >>> source = data.arrow_table({"user": [7, 8, 9], "device": [1, 2, 1]})
        >>> flows = source.split("device", {"phone": 1, "pc": 2})
        >>> with FlowBatches({"a": flows["phone"].batch(2), "b": flows["pc"].batch(1)}) as batches:
        ...     [next(batches[name]).features["user"].to_lists() for name in batches]
        [[[7], [9]], [[8]]]
    """

    def __init__(
        self,
        pipelines: Mapping[str, Pipeline],
        state: State | None = None,
        *,
        patience: float = 0.0,
    ) -> None:
        where = "[FlowBatches]"
        if state is not None and state.get("version") != _VERSION:
            raise FailedPreconditionError(
                f"{where} expected a state of version {_VERSION}, got {state.get('version')}"
            )
        if state is not None and list(state["flows"]) != list(pipelines):
            raise FailedPreconditionError(
                f"{where} expected a state of {list(pipelines)}, got one of {list(state['flows'])}"
            )
        stages = [pipeline.stage for pipeline in pipelines.values()]
        if any(pipeline.depth for pipeline in pipelines.values()):
            stages = enable_read_ahead(stages)
        stages, _ = share(stages, 0, patience=patience)
        self._batches: dict[str, Batches] = {}
        try:
            for (name, pipeline), stage in zip(pipelines.items(), stages, strict=True):
                part = replace(pipeline, stage=stage)
                self._batches[name] = (
                    iter(part) if state is None else part.resume(state["flows"][name])
                )
        except BaseException:
            self.close()
            raise

    def __getitem__(self, name: str) -> Batches:
        return self._batches[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def state_dict(self) -> State:
        """Return the positions of the next batches as a small JSON object.

        Call it while no thread reads. The state of one name is also a state of its pipeline alone,
        for `Pipeline.resume`.
        """
        flows = {name: batches.state_dict() for name, batches in self._batches.items()}
        return {"version": _VERSION, "flows": flows}

    def close(self) -> None:
        """Stop the threads that prepare batches, and close files."""
        for batches in self._batches.values():
            batches.close()
