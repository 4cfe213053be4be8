"""Run all features of a batch through an engine: forward, backward and step.

Beside one `Embedding` that holds the rows of all features, whose keys carry their feature; and with
a thousand features of one id each, where what counts is the cost of a feature, not of a row.
"""

import functools
import sys
from collections.abc import Callable, Mapping

import numpy as np
import torch

import monolith
from benchmarks import workload as work
from benchmarks.click_model import DIM, NUM_FEATURES, Sizes, batches, flat_of, keys_of
from benchmarks.harness import Measurement, Sample, emit, interleave, ratios, say, timed
from benchmarks.stage import Options, run_stage
from benchmarks.worker import check
from benchmarks.workload import INITIAL_ACCUMULATOR, LEARNING_RATE
from monolith.features import BagFeature, PendingGradients, engine_for
from monolith.features.autograd import lookup_features
from monolith.nn import Embedding
from monolith.ops import Ragged, RaggedColumns
from monolith.optim import Optimizer
from monolith.table import Segment, Table, TableConfig
from monolith.table.optimizers import Adagrad

_ROWS, _QUICK_ROWS = 1_000_000, 20_000  # of each feature
_MANY, _MANY_DIM, _MANY_BATCHES = 1_000, 8, 2
_VERSIONS = {"monolith": monolith.__version__, "torch": torch.__version__}
Steps = Callable[[int], torch.Tensor]


def _adagrad() -> Adagrad:
    return Adagrad(LEARNING_RATE, initial_accumulator_value=INITIAL_ACCUMULATOR)


class Features(torch.nn.Module):
    """A module with a table for each feature; `features` are their names.

    Args:
        num_features: and tables.
        dim: of a row.
    """

    def __init__(self, num_features: int, dim: int) -> None:
        super().__init__()
        self.names = [f"feature_{number:04}" for number in range(num_features)]
        tables = [Table(TableConfig(name, Segment(dim, _adagrad()))) for name in self.names]
        engine = engine_for(tables, [BagFeature(name, name) for name in self.names])
        self.queue = PendingGradients(engine)
        self.anchor = self.queue.anchor

    def forward(self, ids: Mapping[str, Ragged]) -> torch.Tensor:
        """Rows of all features."""
        return lookup_features(self.queue, self.anchor, ids, None, "initial")[0]


def _step(
    module: torch.nn.Module,
    optimizer: Optimizer,
    inputs: list[object],
    gradient: torch.Tensor,
    number: int,
) -> torch.Tensor:
    """Forward, backward, update; the output before it."""
    output: torch.Tensor = module(inputs[number % len(inputs)])
    output.backward(gradient.view(output.shape))  # type: ignore[no-untyped-call]
    optimizer.step()
    return output.detach()


def _sample(step: Steps, num_steps: int) -> Sample:
    """Milliseconds of a step."""
    with timed() as window:
        for number in range(num_steps):
            step(number)
    return Sample(window.seconds / num_steps * 1e3, window.others_cores)


def click_steps(sizes: Sizes) -> dict[str, Steps]:
    """A step over 26 tables and over one, with equal rows: a known answer for each other."""
    torch.set_num_threads(sizes.threads)
    many = Features(NUM_FEATURES, DIM)
    one = Embedding(DIM, optimizer=_adagrad(), name="features")
    for flat in work.index_ranges(NUM_FEATURES * sizes.rows, 65_536):
        keys, values = torch.from_numpy(keys_of(flat, sizes.rows)), work.values_of(flat, DIM)
        one.table.assign(keys, torch.from_numpy(values))
        for number in np.unique(flat // sizes.rows):
            mine = flat // sizes.rows == number
            table = many.queue.engine.tables[many.names[number]]
            table.assign(keys[mine], torch.from_numpy(values[mine]))
    drawn = [keys_of(flat_of(b.ids, sizes.rows), sizes.rows) for b in batches(sizes)]
    splits = torch.arange(sizes.batch + 1)
    ragged: list[object] = [
        {
            name: Ragged(torch.from_numpy(keys[:, i].copy()), splits)
            for i, name in enumerate(many.names)
        }
        for keys in drawn
    ]
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(sizes.batch, NUM_FEATURES * DIM, generator=generator) * 0.01
    matrices: list[object] = [torch.from_numpy(keys) for keys in drawn]
    steps: dict[str, Steps] = {
        "features": functools.partial(_step, many, Optimizer(many), ragged, gradient),
        "one_table": functools.partial(_step, one, Optimizer(one), matrices, gradient),
    }
    for number in range(len(drawn)):
        expected = steps["one_table"](number).numpy()
        found = steps["features"](number).numpy().reshape(expected.shape)
        check("features", found, expected, tolerance=0)
    return steps


def many_steps() -> dict[str, Steps]:
    """A step over a thousand tables, a sample and one id each.

    The ids lie in one memory, as a pipeline gives them; or each feature has memory of its own.
    """
    random = np.random.default_rng(0)
    ids = random.integers(0, 1_000, (_MANY_BATCHES, _MANY, 1))
    gradient = torch.full((1, _MANY * _MANY_DIM), 0.01)
    steps: dict[str, Steps] = {}
    for kind in ("many", "many_dicts"):
        many = Features(_MANY, _MANY_DIM)
        inputs: list[object] = [
            {
                name: Ragged.from_lists([row.tolist()])
                for name, row in zip(many.names, rows, strict=True)
            }
            for rows in ids
        ]
        if kind == "many":
            joined = [RaggedColumns.from_ragged(each) for each in inputs]  # type: ignore[arg-type]
            names = joined[0].names
            inputs = [RaggedColumns._unchecked(names, c.ids, c.row_splits) for c in joined]
        steps[kind] = functools.partial(_step, many, Optimizer(many), inputs, gradient)
    return steps


def run(options: Options) -> None:
    """Print a line for each."""
    rules = options.rules
    sizes = Sizes(_QUICK_ROWS if options.is_quick else _ROWS)
    say(f"[features] {NUM_FEATURES} features with {sizes.rows:,} rows each; {_MANY} features")
    steps = click_steps(sizes)
    count = max(4, round(rules.sample_seconds * 100))
    contenders = {name: functools.partial(_sample, step, count) for name, step in steps.items()}
    for name, step in many_steps().items():
        contenders[name] = functools.partial(_sample, step, 4 * count)
    for warm_up in contenders.values():
        warm_up()
    series = interleave(contenders, rules)
    for name, key, about in (
        ("features", "features", {"rows": sizes.rows, "dim": DIM, "batch": sizes.batch}),
        ("many_features", "many", {"rows": 1_000, "dim": _MANY_DIM, "batch": 1}),
        ("many_features_dicts", "many_dicts", {"rows": 1_000, "dim": _MANY_DIM, "batch": 1}),
    ):
        tables = NUM_FEATURES if key == "features" else _MANY
        measurement = Measurement(
            name=name,
            system="monolith",
            unit="ms",
            series=series[key],
            sizes={
                **about,
                "tables": tables,
                "distribution": "zipf" if key == "features" else "uniform",
                "threads": sizes.threads,
            },
            versions=_VERSIONS,
            ratios=ratios(series, key, ["one_table"]) if key == "features" else {},
        )
        emit(measurement, rules)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
