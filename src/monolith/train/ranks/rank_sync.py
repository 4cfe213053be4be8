"""`RankSync`: what a trainer does together with the other ranks of its job."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from monolith.cluster.data_service import ServiceSource
from monolith.cluster.job.dense_shard import (
    describe_dense,
    describe_features,
    trained_parameters,
)
from monolith.cluster.ranks.dense_sync import DenseSync
from monolith.cluster.ranks.key_exchange import (
    ExchangeCounts,
    KeyExchange,
    KeyMessages,
    LookupFacts,
)
from monolith.cluster.ranks.rank_tables import RankTables
from monolith.cluster.ranks.ranks_engine import RanksEngine
from monolith.cluster.server_host import config_text
from monolith.data import Batch
from monolith.errors import InvalidArgumentError
from monolith.features import FeatureEngine
from monolith.nn import Features
from monolith.ops import Ragged
from monolith.train.figures import Meter
from monolith.train.inputs import Inputs, Trainee
from monolith.train.ranks.rank_source import (
    RankPosition,
    RankSource,
    is_of_ranks,
    warn_read_again,
)
from monolith.train.run_state import RANK_STATES, RunState, random_states
from monolith.train.settings import TrainSettings
from monolith.train.task import Task

STOP, INTERRUPT, TERMINATE, SAVE = range(4)
"""Wishes of a rank: a hook's stop, Ctrl-C, SIGTERM, and the chief's save after this step."""

NUM_WISHES = 4


class RankSync:
    """The part of one rank in the training of a task. Rank 0 saves, reports and evaluates for all.

    Args:
        ranks: tables of all ranks.
        trainee: task with everything that its training changes.
        state: state of the run.

    Attributes:
        group: the ranks.
        dense: sums of the dense gradients.
        is_save_agreed: whether all ranks take part in a save after the running step.
        has_equal_losses: whether the losses of all ranks count as they are, and not by their share
            of the samples; see `average_dense`.
        source: source of the running fit; None outside of a fit.

    Raises:
        InvalidArgumentError: the ranks have different tasks or settings.
    """

    def __init__(self, ranks: RankTables, trainee: Trainee, state: RunState) -> None:
        self._ranks, self._trainee, self._state = ranks, trainee, state
        self.group = ranks.group
        state.rank = self.group.rank
        dense = trainee.optimizer.dense
        self.group.check_equal(_facts_of(trainee, state))
        if trainee.transfer is not None:
            self.group.use_cards(trainee.transfer.device)
        parameters = trained_parameters(trainee.model, dense)
        self.dense = DenseSync(self.group.dense, parameters.values(), NUM_WISHES)
        self.dense.broadcast([*trainee.model.parameters(), *trainee.model.buffers()])
        engine = trainee.features.pending.engine
        self.engine = engine if isinstance(engine, RanksEngine) else None
        self._keys = KeyExchange(self.group.lookups, 0) if self.engine is None else self.engine.keys
        self._empty = {name: Ragged.from_lists([]) for name in trainee.features.features}
        is_changed = type(trainee.task).change_gradients is not Task.change_gradients
        self._needs_norm = is_changed or trainee.settings.clip_norm is not None
        self.is_save_agreed = self.has_equal_losses = False
        self.source: RankSource | None = None
        self._joint: tuple[int, Mapping[str, Any]] | None = None  # of a step

    @property
    def is_chief(self) -> bool:
        """Whether this is rank 0."""
        return self.group.rank == 0

    @property
    def counts(self) -> ExchangeCounts:
        """Numbers of bytes that this rank has sent for lookups and gradients of tables."""
        return self._keys.counts

    @property
    def device_words(self) -> str | None:
        """Words that say where the dense part is, and how its gradients travel; None on a CPU."""
        transfer, size = self._trainee.transfer, self.group.size
        if transfer is None:
            return None
        way = {"gloo": "by gloo through main memory", "nccl": "by nccl from card to card"}
        how = f"; dense gradients of {size} ranks go {way[self.group.dense.transport]}"
        return f"dense part of rank {self.group.rank} on {transfer.device}{how if size > 1 else ''}"

    def counters(self) -> dict[str, int]:
        """Return the bytes that this rank has sent, as counters of a sink."""
        counts = self.counts
        return {
            "exchange/key_bytes": counts.key_bytes,
            "exchange/padding_bytes": counts.padding_bytes,
            "exchange/row_bytes": counts.row_bytes,
            "exchange/gradient_bytes": counts.gradient_bytes,
            "exchange/overflows": counts.num_overflows,
            "exchange/dense_bytes": self.dense.num_bytes,
        }

    # Steps

    def average_dense(self) -> None:
        """Average dense gradients over ranks and sum those of rows, each of a rank's own loss.

        This is the rule of the reference system, with which results depend on the number of ranks.
        """
        self.has_equal_losses, self.dense.factor = True, 1 / self.group.size

    def share_of(self, messages: KeyMessages) -> float:
        """Return the number by which the loss of this rank's batch is divided."""
        if self.has_equal_losses:
            return 1.0
        return messages.num_samples / max(1, messages.facts[self.group.rank].num_samples)

    def look_up(self, batch: Batch | None) -> tuple[Inputs | None, KeyMessages]:
        """Look up the rows of a batch together with all ranks; a rank without data has none."""
        time = None
        if batch is not None and batch.time is not None and len(batch.time):
            time = int(batch.time.max())
        num_samples = 0 if batch is None else len(batch)
        facts = LookupFacts(num_samples, batch is None, time, self._trainee.clock.now())
        if self.engine is None:
            parts = [(torch.empty(0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))]
            messages = self._keys.exchange(parts * self.group.size, facts)
        else:
            self.engine.facts = facts
        inputs = None
        if batch is not None:
            inputs = self._trainee.look_up(batch, is_training=True)
        elif self.engine is not None:
            self._trainee.features.read(self._empty, is_training=True)
        if self.engine is not None:
            assert self.engine.messages is not None
            messages = self.engine.messages
        return inputs, messages

    def begin_update(self, lookups: Sequence[KeyMessages]) -> None:
        """Prepare the update of a step: its lookups, its time, and the norm if it is needed."""
        facts = [facts for messages in lookups for facts in messages.facts]
        times = [fact.time for fact in facts if fact.time is not None]
        self._trainee.clock.set_times(times, facts[0].now)
        if self.engine is None:
            return
        self.engine.cover([messages.number for messages in lookups])
        if self._needs_norm:
            self._trainee.features.pending.show_norm()

    # The whole job

    def begin(self, source: Iterable[Batch]) -> RankSource:
        """Begin a fit: divide its source, and give all ranks the dense values of rank 0.

        Raises:
            InvalidArgumentError: the source is a data service, or the ranks have different data.
        """
        if isinstance(source, ServiceSource):
            raise InvalidArgumentError(
                "[Trainer] expected a source that ranks divide among them, got a data service, "
                "whose batches go to whoever asks first; give the task's own source"
            )
        self.source = source = RankSource(
            source, self.group.rank, self.group.size, num_trained=self._state.num_before
        )
        names = [source.own_names(0, rank) for rank in range(self.group.size)]
        self.group.check_equal({"data": [name for part in names for name in part]})
        clock, model = self._trainee.clock, self._trainee.model
        clock.begin_at(self.group.control.share(clock.now()))
        self.dense.broadcast([*model.parameters(), *model.buffers()])
        if self.engine is not None:
            self.engine.forget()
        self._state.joint = self._saved
        return self.source

    def give_up(self) -> None:
        """End all waits of this rank for others."""
        self._ranks.give_up()

    def barrier(self) -> None:
        """Wait until all ranks have come here."""
        self.group.control.gather(None)

    def of_chief(self, names: Iterable[str]) -> list[str]:
        """Wait until all ranks have come here; return the names in rank 0, and none elsewhere."""
        self.barrier()
        return list(names) if self.is_chief else []

    def share_buffers(self) -> None:
        """Give all ranks the buffers of rank 0, such as the statistics of a batch norm."""
        self.dense.broadcast(self._trainee.model.buffers())

    def gather_state(self) -> None:
        """Give rank 0 what a checkpoint has of all ranks: positions, generators and figures."""
        position = self._state.position
        left = None  # the position of a checkpoint that was restored is that of all ranks
        if self.source is not None and isinstance(position, RankPosition):
            left = self.source.left_of(position)
        figures_state = self._state.figures_state()
        own = {"left": _plain(left), "random": random_states(), "figures": figures_state}
        states = self.group.control.gather(own)
        if not self.is_chief:
            return
        figures = merged_figures(self._trainee.new_meter, [state["figures"] for state in states])
        if self.source is not None and left is not None:
            position = self.source.joined([tuple(state["left"]) for state in states])
        joint = {
            "position": position,
            "figures": None if figures is None else figures.state_dict(),
            RANK_STATES: [state["random"] for state in states[1:]],
        }
        self._joint, self._state.joint = (self._state.step, joint), self._saved

    def _saved(self) -> Mapping[str, Any]:
        """Return the parts of the state that are those of all ranks at this step."""
        if self._joint is None or self._joint[0] != self._state.step:
            return {"position": None}  # the check of a hook before the first step
        return self._joint[1]

    def begin_evaluation(self, source: Iterable[Batch]) -> Iterable[Batch]:
        """Wait until all ranks have made their updates; return this rank's part of a source."""
        self.share_buffers()
        self.barrier()
        return RankSource(source, self.group.rank, self.group.size)

    def merge(self, meter: Meter) -> Meter:
        """Return a meter with the sums of all ranks, equal in all ranks."""
        states = self.group.control.gather(meter.state_dict())
        merged = merged_figures(self._trainee.new_meter, states)
        assert merged is not None
        return merged

    def after_restore(self) -> None:
        """Go on after rank 0 has restored the tables."""
        self.barrier()
        for table in self._trainee.features.tables.values():
            note_push: Callable[[None], None] | None = getattr(table, "note_push", None)
            if note_push is not None:
                note_push(None)


def rank_source(source: Iterable[Batch], sync: RankSync | None, state: RunState) -> Iterable[Batch]:
    """Return the source of a fit: divided among ranks, or what ranks have left of it."""
    if sync is not None:
        return sync.begin(source)
    state.joint = None
    if not is_of_ranks(state.position):
        return source
    if isinstance(source, ServiceSource):
        warn_read_again("a data service has shares of its own", state.num_before)
        state.position = None
        return source
    left = RankSource(source, 0, 1, num_trained=state.num_before)
    state.joint = lambda: {"position": left.joined([left.left_of(state.position)])}
    return left


def reader_of(features: Features) -> FeatureEngine | None:
    """Return the engine that reads without the other ranks; None without ranks."""
    engine = features.pending.engine
    return engine.reader if isinstance(engine, RanksEngine) else None


def settings_of_rank(settings: TrainSettings, ranks: RankTables | None) -> TrainSettings:
    """Return the settings of one rank: a rank that fails ends the job, and rank 0 saves.

    The ranks of a machine take its cards in turn, if the device has no number.
    """
    if ranks is None:
        return settings
    device, prefetch = settings.device, settings.prefetch
    if device == "cuda" and (num_cards := torch.cuda.device_count()):
        device = f"cuda:{ranks.local_rank % num_cards}"
    prefetch = 1 if isinstance(prefetch, str) else prefetch
    settings = replace(settings, device=device, prefetch=prefetch, max_recoveries=0)
    return settings if ranks.group.rank == 0 else replace(settings, checkpoint_dir=None)


def _plain(value: Any) -> Any:
    """Return tuples as lists."""
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def merged_figures(new_meter: Callable[[], Meter], states: Sequence[Any]) -> Meter | None:
    """Return a meter with the sums of others; None without any."""
    known = [state for state in states if state is not None]
    if not known:
        return None
    total = new_meter()
    total.load_state_dict(known[0])
    for state in known[1:]:
        other = new_meter()
        other.load_state_dict(state)
        total.merge(other)
    return total


def _facts_of(trainee: Trainee, state: RunState) -> dict[str, list[str]]:
    """Return what must be equal in all ranks."""
    task, settings = trainee.task, trainee.settings
    names = (
        *("steps", "accumulate", "clip_norm", "precision", "prefetch", "push", "log_every"),
        *("eval_every", "early_stop", "evict_every", "seed"),
    )
    parameters = trained_parameters(trainee.model, trainee.optimizer.dense)
    return {
        "features": describe_features(task.features),
        "tables": [config_text(table.config) for table in trainee.features.tables.values()],
        "dense": describe_dense(parameters, trainee.optimizer.dense),
        "rates": describe_features(f"{name} {rate}" for name, rate in state.rates.items()),
        "settings": [
            *(f"{name} {getattr(settings, name)}" for name in names),
            f"evict_every_hours {dict(task.evict_every_hours)}",
            f"transfer {getattr(trainee.features.pending.engine, 'transfer', None)}",
        ],
        "device": [f"device {settings.device.partition(':')[0]}"],
    }
