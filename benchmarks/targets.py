"""The targets, and whether the JSON lines of a run meet them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Line = Mapping[str, Any]

_LONG_ROWS = 20_000_000  # pauses are judged on tables that grow at least to this size
_INTERRUPT_NS = 10_000  # a row update that a timer interrupts takes longer than its arithmetic


@dataclass(frozen=True)
class Target:
    """A bound on one number of the lines that it selects; the worst of them counts.

    Args:
        what: the target in words.
        name: the measurement.
        bound: least value, or greatest if `is_maximum`.
        value: the number of a line; None where the line does not have it.
        where: fields that a line must have.
        is_maximum: whether the bound is the greatest value allowed.
    """

    what: str
    name: str
    bound: float
    value: Callable[[Line], float | None]
    where: tuple[tuple[str, Any], ...] = ()
    is_maximum: bool = False

    def measured(self, lines: Sequence[Line]) -> float | None:
        """The worst value among the lines, or None if none was measured."""
        values = [
            value
            for line in lines
            if line["name"] == self.name
            and line["system"] == "monolith"
            and all(line.get(key) == wanted for key, wanted in self.where)
            and (value := self.value(line)) is not None
        ]
        return (max(values) if self.is_maximum else min(values)) if values else None

    def is_met(self, value: float) -> bool:
        """Whether a measured value keeps the bound."""
        return value <= self.bound if self.is_maximum else value >= self.bound


def _ratio(baseline: str) -> Callable[[Line], float | None]:
    return lambda line: line["ratios"].get(baseline)


def _field(name: str) -> Callable[[Line], float | None]:
    return lambda line: line.get(name)


_median = _field("median")
_TWO_CALLS = (("window", 2),)
_ONE_AFTER_THE_OTHER = (("depth", 0),)


def _pause_p99(line: Line) -> float | None:
    return float(line["pause_p99_ms"])


def _pause(line: Line) -> float | None:
    return float(line["batch_max_over_median"]) if line["rows"] >= _LONG_ROWS else None


def _maximum(line: Line) -> float | None:
    return float(line["spread"][1])


def _excess_wait(line: Line) -> float | None:
    """The longest wait in row updates; below the length of an interrupt it counts as one.

    None where a thread was pre-empted in every window: then the wait is the scheduler's.
    """
    if line["calm_wait_max_ns"] is None:
        return None
    wait = float(line["calm_wait_max_ns"])
    return 1.0 if wait <= _INTERRUPT_NS else wait / float(line["row_update_ns"])


_UNIFORM, _ZIPF = ("distribution", "uniform"), ("distribution", "zipf")
_DIM_16, _DIM_64 = ("dim", 16), ("dim", 64)

TARGETS = (
    Target("lookup, dim 16, uniform: x TFRA", "lookup", 7, _ratio("tfra"), (_DIM_16, _UNIFORM)),
    Target("lookup, dim 16, Zipf: x TFRA", "lookup", 5, _ratio("tfra"), (_DIM_16, _ZIPF)),
    Target("lookup, dim 64, up to 10 M keys: x TFRA", "lookup", 4, _ratio("tfra"), (_DIM_64,)),
    Target("lookup: x FBGEMM's static TBE forward", "lookup", 1, _ratio("fbgemm")),
    Target("lookup: x nn.EmbeddingBag forward", "lookup", 0.35, _ratio("torch")),
    Target("insert, mean rate: x TFRA", "insert", 5, _ratio("tfra")),
    Target("insert, slowest batch / median", "insert", 3, _pause, is_maximum=True),
    Target("update, dim 16, uniform: x TFRA", "update", 8, _ratio("tfra"), (_DIM_16, _UNIFORM)),
    Target("update, dim 16, Zipf: x TFRA", "update", 6, _ratio("tfra"), (_DIM_16, _ZIPF)),
    Target("update, dim 16: x FBGEMM", "update", 3, _ratio("fbgemm"), (_DIM_16,)),
    Target("update, dim 64: x FBGEMM", "update", 2, _ratio("fbgemm"), (_DIM_64,)),
    Target("memory per key, dim 16 [B]", "memory", 97, _maximum, (("optimizer", "sgd"),), True),
    Target(
        "memory per key with Adagrad [B]",
        "memory",
        162,
        _maximum,
        (("optimizer", "adagrad"),),
        True,
    ),
    Target(
        "bf16 rows, dim 64: x bytes of fp32 rows",
        "precision_memory",
        0.6,
        _ratio("fp32"),
        (_DIM_64, ("precision", "bf16")),
        True,
    ),
    Target("apply with Adam and FTRL: x Adagrad's B/s", "optimizers", 0.7, _ratio("adagrad")),
    *(
        Target(
            f"step of {name}, 10 M parameters: x time of fused Adam",
            "dense_optimizers",
            1.5,
            _ratio("torch_adam"),
            (("num_parameters", 10_000_000), ("optimizer", name)),
            is_maximum=True,
        )
        for name in ("adamom", "rmsprop", "rmsprop_v2")
    ),
    Target("readers 1 to 2: x scaling of a gather", "scaling", 0.95, _ratio("gather")),
    Target(
        "longest wait of a reader [row updates]", "scaling_writer", 1, _excess_wait, is_maximum=True
    ),
    Target(
        "admission on existing keys: x time without",
        "admission_existing",
        1.15,
        _ratio("no rule"),
        is_maximum=True,
    ),
    Target("refused key [ns]", "admission_refused", 60, _field("median"), is_maximum=True),
    Target("memory after 50 % churn: x fresh", "eviction_memory", 1.1, _ratio("fresh"), (), True),
    Target("lookups beside a sweep: x alone", "eviction_sweep", 0.9, _ratio("alone")),
    Target(
        "longest wait for a lock beside a sweep [ns]",
        "eviction_sweep",
        1e6,
        _field("lock_wait_max_ns"),
        is_maximum=True,
    ),
    Target("save: x the disk's sequential rate", "disk_save", 0.8, _ratio("sequential")),
    Target("load: x the disk's sequential rate", "disk_load", 0.6, _ratio("sequential")),
    Target("checkpoint save: x the same", "checkpoint_save", 0.8, _ratio("sequential")),
    Target("checkpoint load: x the same", "checkpoint_load", 0.6, _ratio("sequential")),
    Target("dense tensors, save: x the same", "checkpoint_dense_save", 0.8, _ratio("sequential")),
    Target("dense tensors, load: x the same", "checkpoint_dense_load", 0.6, _ratio("sequential")),
    Target("some megabytes, save: x the same", "checkpoint_small_save", 0.8, _ratio("sequential")),
    Target("some megabytes, load: x the same", "checkpoint_small_load", 0.6, _ratio("sequential")),
    Target("updates with the touched log: x without", "changes_log", 0.97, _ratio("off")),
    Target("reading changed keys [M keys/s]", "changes_read", 10, _field("median")),
    Target("opening a cut with a cursor, p99 [ms]", "cut_open", 1, _field("median"), (), True),
    Target("changed keys at a cut: x Table.changes", "cut_changes", 0.5, _ratio("table")),
    Target("rows of changed keys at a cut [M keys/s]", "cut_entries", 3, _field("median")),
    Target("updates beside a save: x alone", "save_beside", 0.9, _ratio("alone")),
    *(
        Target(f"pause of updates beside a save{of}, p99 [ms]", name, 5, _pause_p99, (), True)
        for name, of in {"save_beside": "", "save_beside_admission": " of candidates"}.items()
    ),
    Target(
        "steps while a checkpoint is written: x alone", "background_saves", 0.9, _ratio("alone")
    ),
    Target("pause of a save, p99 [ms]", "background_saves", 5, _pause_p99, (), True),
    Target("link of 1 % of the rows: x time of a full save", "link", 0.1, _ratio("full"), (), True),
    Target("full save: x bytes of rows of such a link", "link", 80, _field("row_bytes_ratio")),
    Target("steps with a link every 5 s: x alone", "links_of_run", 0.97, _ratio("alone")),
    *(
        Target(f"rows imported from {words} [M/s of one core]", name, 2, _field("median"))
        for name, words in {
            "import_table": "dumps of one table",
            "import_tables": "compressed dumps",
        }.items()
    ),
    Target("whole model: x samples/s on FBGEMM", "end_to_end", 1.25, _ratio("fbgemm")),
    Target("whole model: x samples/s on TFRA", "end_to_end", 2.5, _ratio("tfra")),
    Target("whole model: x its dense layers alone", "end_to_end", 0.8, _ratio("dense")),
    Target("DLRM by the trainer: x its dense part alone", "dlrm", 0.9, _ratio("dense")),
    Target("DLRM by the trainer: x a loop by hand", "dlrm", 0.95, _ratio("loop")),
    Target(
        "DLRM: x samples/s of reading Parquet too", "dlrm", 1.05, _ratio("parquet"), is_maximum=True
    ),
    *(
        Target(f"DLRM by the trainer: x samples/s on {name}", "dlrm", 1, _ratio(peer))
        for name, peer in {"FBGEMM": "fbgemm", "TFRA": "tfra"}.items()
    ),
    Target(
        "step of a bag of 64 ids: x nn.EmbeddingBag's", "small_bag", 0.7, _ratio("torch"), (), True
    ),
    Target("step of 1,000 features at batch 1 [ms]", "trainer", 2, _field("median"), (), True),
    Target("step with all sinks: x one without", "metrics", 1.02, _ratio("none"), (), True),
    Target("step over 100 tables: x one table's", "group", 0.9, _ratio("one_table")),
    Target("26 features on 2 servers: x in the trainer", "servers_tables", 0.4, _ratio("trainer")),
    Target("click model on 2 servers: x in the trainer", "servers_click", 0.7, _ratio("trainer")),
    Target("pulls of 32,768 keys from a process [M/s]", "wire_pull", 12, _median, _TWO_CALLS),
    Target("pushes of 32,768 keys to a process [M/s]", "wire_push", 10, _median, _TWO_CALLS),
    Target("pulls and pushes at once: x 8 + 6 M keys/s", "wire_both", 1, _median),
    Target(
        "pull of 1,000 keys under half load, p99 [ms]", "wire_wait_loaded", 3, _median, (), True
    ),
    Target("pulls of 10 keys by 8 clients [k/s]", "wire_messages", 10, _median),
    Target(
        "click model on 2 processes: x in the trainer",
        "wire_model",
        0.6,
        _ratio("local"),
        _ONE_AFTER_THE_OTHER,
    ),
    Target("SIGKILL to first push, 2 M rows [s]", "wire_recovery", 10, _median, (), True),
    *(
        Target(f"{words} on 2 + 2 processes: x two trainers alone", name, 0.7, _ratio("local"))
        for name, words in {"job": "26 features", "job_click": "click model"}.items()
    ),
    Target("26 features on 2 ranks: x one process, 2 threads", "ranks", 0.85, _ratio("whole")),
    Target("the same, ahead: x one process, 2 threads", "ranks_ahead", 0.85, _ratio("whole")),
    Target("26 features on 2 ranks: x TorchRec", "ranks", 1.5, _ratio("torchrec")),
    Target("`monolith launch` to the first step, 2 + 2 [s]", "job_launch", 10, _median, (), True),
    Target(
        "step over 26 features: x time of one table's", "features", 1, _ratio("one_table"), (), True
    ),
    Target(
        "step over 1,000 features of one id [ms]", "many_features", 2, _field("median"), (), True
    ),
    Target("pack of 200 tensors: x torch.cat of flattened views", "pack", 2, _ratio("torch")),
    Target("unpack of 200 tensors: x slices and reshapes", "unpack", 1.5, _ratio("torch")),
    Target("layout, 100 features, both ways: x torch", "layout", 3, _ratio("torch")),
    Target("ids from Parquet [M/s of one core]", "input_parquet", 30, _field("median")),
    Target(
        "joiner with 1M open impressions [k events/s]",
        "joiner",
        50,
        _field("median"),
        (("open", 1_000_000),),
    ),
    Target("growth over a stream of 10 GB [MiB]", "input_memory", 64, _field("median"), (), True),
    Target("nested batch into a queue and out [us]", "queue", 50, _field("median"), (), True),
    Target(
        "5 steps of 0.2 s with a function of 0.2 s [s]", "overlap", 1.3, _field("median"), (), True
    ),
    *(
        Target(f"records of {kind} [M ids/s]", f"records_{kind}", bound, _field("median"))
        for kind, bound in {
            "example_batch": 20,
            "instance": 15,
            "example": 15,
            "tf_example": 15,
        }.items()
    ),
    Target("empty table [B]", "empty_table", 4096, _field("median"), is_maximum=True),
    Target("1,000 tables of 10 rows [MiB]", "thousand_tables", 16, _field("median"), (), True),
    Target("creating 1,000 tables [ms]", "create_tables", 50, _field("median"), is_maximum=True),
)


def table(lines: Sequence[Line]) -> str:
    """A readable table: target, measured, met or missed; the worst size of each target counts."""
    rows = [("what", "target", "measured", "")]
    for target in TARGETS:
        bound = f"{'<=' if target.is_maximum else '>='} {target.bound:g}"
        if (value := target.measured(lines)) is None:
            rows.append((target.what, bound, "-", "not measured"))
        else:
            verdict = "met" if target.is_met(value) else "MISSED"
            rows.append((target.what, bound, f"{value:.4g}", verdict))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
