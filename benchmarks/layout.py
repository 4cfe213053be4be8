"""Ids of 100 features to pooled layouts, forward and backward, beside torch.

100 features of dim 16, 3 ids per cell; 40 are summed, 40 averaged, of 20 the first ids are kept.
"""

import functools
import statistics
import sys
import time
from collections.abc import Callable

import torch

import monolith
from benchmarks.harness import Measurement, Sample, emit, interleave, ratios, say, timed
from benchmarks.layout_torch import (
    DIM,
    IDS_PER_CELL,
    KINDS,
    NUM_FEATURES,
    LayoutWork,
    TorchLayout,
    features_of,
    kind_of,
)
from benchmarks.stage import Options, run_stage
from benchmarks.worker import check
from monolith.native_training.ops import (
    FeatureConfig,
    FeatureConfigs,
    OutConfig,
    OutType,
    PoolingType,
    ShardedFids,
    SliceConfig,
    fused_embedding_to_layout,
    sharding_sparse_fids,
)
from monolith.ops import Ragged

_VERSIONS = {"monolith": monolith.__version__, "torch": torch.__version__}
_THREADS = 2
_SHARDS = 2
_CHECK_TOLERANCE = 1e-4
_POOLING = {"sum": PoolingType.SUM, "mean": PoolingType.MEAN, "first": PoolingType.FIRSTN}


def name_of(feature: int) -> str:
    """Names whose order is that of the numbers."""
    return f"f{feature:03}"


def make_configs() -> FeatureConfigs:
    """One table for all features; one output per kind."""
    numbers = range(NUM_FEATURES)
    features = {
        name_of(i): FeatureConfig("table", [DIM], _POOLING[kind_of(i)], IDS_PER_CELL)
        for i in numbers
    }
    outputs = {
        kind: OutConfig([SliceConfig(name_of(i), 0, DIM) for i in features_of(kind)], OutType.STACK)
        for kind in KINDS
    }
    return FeatureConfigs(features, outputs)


class OurLayout:
    """`fused_embedding_to_layout`, one tensor of rows per shard."""

    def __init__(self, work: LayoutWork) -> None:
        batch = work.ids.shape[1]
        lengths = torch.full((batch,), IDS_PER_CELL)
        self._features = {
            name_of(i): Ragged.from_lengths(work.ids[i].reshape(-1), lengths)
            for i in range(NUM_FEATURES)
        }
        self._configs, self._batch = make_configs(), batch
        self._gradients = [work.gradients[kind] for kind in sorted(KINDS)]
        self._sharded = self.shard()
        self._places = []  # feature * vocabulary + id of every row, by shard
        self._rows = []
        splits = self._sharded.fid_list_row_splits
        for shard, fids in enumerate(self._sharded.shard_fids):
            features = torch.arange(NUM_FEATURES).repeat_interleave(splits[shard].diff())
            self._places.append(features * work.rows.shape[1] + fids)
            rows = work.rows.flatten(0, 1)[self._places[-1]]
            self._rows.append(rows.requires_grad_())

    def shard(self) -> ShardedFids:
        """Sort the ids; not part of a step."""
        return sharding_sparse_fids(
            self._features, self._configs, batch_size=self._batch, ps_num=_SHARDS, version=4
        )

    def step(self) -> dict[str, torch.Tensor]:
        """Forward and backward; the outputs by kind."""
        for rows in self._rows:
            rows.grad = None
        outputs = fused_embedding_to_layout(self._rows, self._sharded, self._configs)
        torch.autograd.backward(outputs, self._gradients)
        return dict(zip(sorted(KINDS), outputs, strict=True))

    def gradients(self, work: LayoutWork) -> torch.Tensor:
        """Of the last step, by feature and id, like the rows of the work."""
        found = torch.zeros_like(work.rows)
        for places, rows in zip(self._places, self._rows, strict=True):
            assert rows.grad is not None
            found.view(-1, DIM)[places] = rows.grad
        return found


def compare(work: LayoutWork, ours: OurLayout, theirs: TorchLayout) -> None:
    """Refuse different answers."""
    outputs = ours.step(), theirs.step()
    for kind in KINDS:
        mine, torchs = (found[kind].detach().numpy() for found in outputs)
        check(f"layout {kind}", mine, torchs, tolerance=_CHECK_TOLERANCE)
    mine, torchs = ours.gradients(work).numpy(), theirs.gradients(work).numpy()
    check("layout gradients", mine, torchs, tolerance=_CHECK_TOLERANCE)


def sample(step: Callable[[], object], seconds: float) -> Sample:
    """Steps per second."""
    num_steps = 0
    with timed() as window:
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            step()
            num_steps += 1
    return Sample(num_steps / window.seconds, window.others_cores)


def run(options: Options) -> None:
    """Print one line."""
    batch, vocabulary = (256, 1_000) if options.is_quick else (4_096, 10_000)
    say(f"[layout] {NUM_FEATURES} features, dim {DIM}, batch {batch}: forward and backward")
    torch.set_num_threads(_THREADS)
    work = LayoutWork.make(batch=batch, vocabulary=vocabulary)
    ours, theirs = OurLayout(work), TorchLayout(work)
    compare(work, ours, theirs)
    contenders = {
        name: functools.partial(sample, step, options.rules.sample_seconds)
        for name, step in (("monolith", ours.step), ("torch", theirs.step), ("shard", ours.shard))
    }
    for warm_up in contenders.values():
        warm_up()
    series = interleave(contenders, options.rules)
    measurement = Measurement(
        name="layout",
        system="monolith",
        unit="steps/s",
        series=series["monolith"],
        sizes={
            "features": NUM_FEATURES,
            "dim": DIM,
            "batch": batch,
            "ids_per_cell": IDS_PER_CELL,
            "vocabulary": vocabulary,
            "threads": _THREADS,
        },
        versions=_VERSIONS,
        ratios=ratios(series, "monolith", ["torch"]),
        notes={"shard_ms": round(1e3 / statistics.median(series["shard"].values), 1)},
    )
    emit(measurement, options.rules)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
