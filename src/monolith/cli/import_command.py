"""`monolith import`: make a checkpoint of a task from the vectors of another model."""

import shlex
import time
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Annotated

import typer

from monolith.checkpoint.vectors.vector_chunk import VectorSource
from monolith.checkpoint.vectors.vector_columns import ParquetVectors, VectorColumns
from monolith.checkpoint.vectors.vector_keys import KeyRule, read_keys
from monolith.checkpoint.vectors.vector_tensors import TensorVectors, matrix_name, open_tensors
from monolith.cli.console import emit_json, row_progress, say, told_of_interrupt
from monolith.cli.dumps.import_reference import reference
from monolith.cli.progress import save_with_progress
from monolith.cli.tasks.task_file import load_task_class, resolve_settings
from monolith.train.imported_rows import ImportTarget, import_vectors, open_target

app = typer.Typer(
    help="Example: monolith import embedding model.pt --keys ids.txt --task ranker.py "
    "--feature item --to runs/ranker\n\nMake a checkpoint of a task from another model's vectors.",
    short_help="Make a checkpoint of a task from another model's vectors.",
    no_args_is_help=True,
    add_completion=False,
)

_Task = Annotated[str, typer.Option(metavar="TASK", help="Task file, or FILE.py:CLASS.")]
_Feature = Annotated[str, typer.Option(metavar="NAME", help="Feature that takes the rows.")]
_To = Annotated[str, typer.Option("--to", metavar="DIR", help="Folder of checkpoints.")]
_HashKeys = Annotated[bool, typer.Option("--hash-keys", help="Hash strings as data sources do.")]
_Slot = Annotated[int | None, typer.Option(metavar="N", help="Slot of the keys: IdColumn(slot=N).")]
_Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting.")
]
_File = Annotated[
    str | None, typer.Option("--settings", metavar="FILE", help="Read settings from this file.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


class Duplicates(str, Enum):
    """The effect of a key that occurs in several rows."""

    REFUSE = "refuse"
    LAST = "last"


@dataclass(frozen=True)
class _Place:
    """The options that each subcommand has."""

    task: str
    feature: str
    to: str
    settings: list[str] | None
    file: str | None
    as_json: bool

    def run(self, source: VectorSource) -> None:
        """Import the vectors, save a checkpoint, and say what happened."""
        task = load_task_class(self.task)
        resolved, how = resolve_settings(task, self.file, self.settings or ())
        with (
            told_of_interrupt(f"{self.to} is as it was"),
            open_target(task.from_settings(resolved.value), self.to, how) as target,
        ):
            start = time.perf_counter()
            with row_progress(f"importing {source.where}", source.num_rows) as advance:
                import_vectors(target, self.feature, source, advance)
            seconds = time.perf_counter() - start
            prefix = save_with_progress(target)
            say_imported(target, prefix, source.num_rows - source.num_keys, seconds)
            if self.as_json:
                emit_json(summary(target, prefix, seconds))
        options = [word for text in self.settings or () for word in ("--set", text)]
        options += [] if self.file is None else ["--settings", self.file]
        words = ["train", self.task, *options, "--checkpoints", self.to, "--resume"]
        say(f"next: {shlex.join(['monolith', *words])}")


def say_imported(target: ImportTarget, prefix: str, num_repeated: int, seconds: float) -> None:
    """Say which rows were imported, and where the dense parameters come from."""
    for name, count in target.counts.items():
        rate = count.num_rows / seconds if seconds else 0.0
        parts = [f"{count.num_new:,} new"]
        parts += [f"{count.num_replaced:,} replaced"] if count.num_replaced else []
        parts += [f"{num_repeated:,} of them by a later row"] if num_repeated else []
        if count.num_without_room:
            parts.append(f"{count.num_without_room:,} without room in the budget")
        say(
            f"{count.num_rows:,} rows into table {name!r}: {', '.join(parts)}; in {seconds:.1f} s "
            f"({rate:,.0f} rows/s); their optimizer state is new"
        )
    origin = "new" if target.checkpoint is None else f"those of {target.checkpoint.prefix}"
    num_dense = sum(parameter.numel() for parameter in target.trainer.model.parameters())
    say(f"{num_dense:,} dense parameters are {origin}; saved {prefix}")


def summary(target: ImportTarget, prefix: str, seconds: float) -> dict[str, object]:
    """Return the result of an import for `emit_json`."""
    return {
        "checkpoint": prefix,
        "step": target.trainer.state.step,
        "restored": None if target.checkpoint is None else target.checkpoint.prefix,
        "seconds": seconds,
        "tables": {name: asdict(count) for name, count in target.counts.items()},
    }


@app.command(
    help="Example: monolith import embedding model.pt --keys ids.txt --task ranker.py "
    "--feature item --to runs\n\n"
    "Import the matrix of an nn.Embedding, an nn.EmbeddingBag or a TorchRec table.",
    short_help="Import the matrix of an nn.Embedding, nn.EmbeddingBag or TorchRec table.",
)
def embedding(
    state: Annotated[
        str,
        typer.Argument(metavar="STATE", help="State_dict or tensor: .pt, .pth, .safetensors."),
    ],
    keys: Annotated[str, typer.Option(metavar="FILE", help="Id of each row, or 'range'.")],
    task: _Task,
    feature: _Feature,
    to: _To,
    tensor: Annotated[
        str | None, typer.Option(metavar="NAME", help="Matrix of STATE, if it has several.")
    ] = None,
    key_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of a Parquet file of ids.")
    ] = None,
    hash_keys: _HashKeys = False,
    slot: _Slot = None,
    at: Annotated[
        int | None,
        typer.Option("--time", metavar="SECONDS", help="Time of the rows. Default: now."),
    ] = None,
    settings: _Settings = None,
    file: _File = None,
    as_json: _Json = False,
) -> None:
    """Import the matrix of an nn.Embedding, an nn.EmbeddingBag or a table of TorchRec."""
    with open_tensors(state) as tensors:
        name = matrix_name(tensors.facts, tensor, state)
        num_rows, _ = tensors.facts[name].shape
        row_keys = read_keys(keys, KeyRule(hash_keys, slot), num_rows, key_column)
        source = TensorVectors(tensors, name, row_keys, where=keys, path=state, time=at)
        _Place(task, feature, to, settings, file, as_json).run(source)


@app.command(
    help="Example: monolith import parquet vectors/ --key id --vector v --task ranker.py "
    "--feature item --to runs\n\nImport vectors of Parquet files.",
    short_help="Import vectors of Parquet files.",
)
def parquet(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="File, folder or glob; any path of fsspec.")
    ],
    key: Annotated[str, typer.Option(metavar="COLUMN", help="Column of ids.")],
    vector: Annotated[str, typer.Option(metavar="COLUMN", help="Lists of floats.")],
    task: _Task,
    feature: _Feature,
    to: _To,
    time_column: Annotated[
        str | None, typer.Option("--time", metavar="COLUMN", help="Column of update times.")
    ] = None,
    duplicates: Annotated[
        Duplicates,
        typer.Option(
            metavar="HOW", help="Rule for equal keys: refuse or last.", show_default=False
        ),
    ] = Duplicates.REFUSE,
    hash_keys: _HashKeys = False,
    slot: _Slot = None,
    settings: _Settings = None,
    file: _File = None,
    as_json: _Json = False,
) -> None:
    """Import vectors of Parquet files."""
    columns, rule = VectorColumns(key, vector, time_column), KeyRule(hash_keys, slot)
    with row_progress(f"reading keys of {path}", None) as advance:
        is_last_kept = duplicates is Duplicates.LAST
        source = ParquetVectors(path, columns, rule, is_last_kept=is_last_kept, advance=advance)
    _Place(task, feature, to, settings, file, as_json).run(source)


app.command(
    help="Example: monolith import reference models/ads --task ads.py --to runs/ads\n\n"
    "Import the tables of a checkpoint of the reference system.",
    short_help="Import the tables of a checkpoint of the reference system.",
)(reference)
