"""`monolith inspect` of checkpoints: tables, dense tensors, and what differs between two."""

from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

import torch

from monolith.checkpoint import Checkpoint, find
from monolith.cli.console import emit_json, emit_table, say
from monolith.cli.inspect_save import SaveOptions, inspect_tables
from monolith.errors import NotFoundError
from monolith.table.disk.difference import TableDifference, diff_saves

_NUM_TENSORS = 20  # that are named


def inspect_checkpoint(path: str, options: SaveOptions) -> None:
    """Show a checkpoint, or a row of it.

    Args:
        path: a prefix, or a directory, whose current checkpoint is shown.
        options: what to show.
    """
    checkpoint = _open(path)
    manifest = checkpoint.manifest
    if options.key is None and options.table is None:
        _show_head(checkpoint, options.as_json)
    if options.with_verify:
        checkpoint.verify()
    where = f"{checkpoint.prefix} (step {manifest.step})"
    inspect_tables(checkpoint, where, options)


def diff_checkpoints(path: str, other: str, table: str | None, as_json: bool) -> None:
    """Show what another checkpoint has that one has not, and the other way round.

    Args:
        path: of the one: a prefix or a directory.
        other: of the other.
        table: only this table, and no dense tensors.
        as_json: JSON lines.
    """
    one, two = _open(path), _open(other)
    tables = diff_saves(one, two, names=None if table is None else [table])
    dense = _dense_difference(one, two) if table is None else {}
    if as_json:
        for table_difference in tables:
            emit_json(asdict(table_difference))
        for name, value in dense.items():
            emit_json({"tensor": name, "difference": value})
    else:
        _show_difference(tables)
        if dense:
            emit_table(("tensor", "largest difference"), list(dense.items()))
    num_rows = sum(each.num_added + each.num_removed + each.num_changed for each in tables)
    num_candidates = sum(sum(_candidates(each)[2:]) for each in tables)
    say(
        f"{num_rows:,} rows, {num_candidates:,} candidates and {len(dense):,} dense tensors "
        f"differ; from {one.prefix} (step {one.step}) to {two.prefix} (step {two.step})"
    )


def _show_difference(tables: list[TableDifference]) -> None:
    rows = [
        (each.name, each.num_added, each.num_removed, each.num_changed, each.num_same)
        for each in tables
    ]
    _emit_counts(("table", "added", "removed", "changed", "same"), rows)
    candidates = [(each.name, *_candidates(each)) for each in tables if any(_candidates(each))]
    if candidates:
        head = ("candidates of", "before", "after", "added", "removed", "changed")
        _emit_counts(head, candidates)


def _emit_counts(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    emit_table(head, [[name, *(f"{number:,}" for number in numbers)] for name, *numbers in rows])


def _candidates(table: TableDifference) -> tuple[int, ...]:
    """Return the numbers before and after, and those added, removed and changed."""
    return (
        table.num_candidates,
        table.num_other_candidates,
        table.num_added_candidates,
        table.num_removed_candidates,
        table.num_changed_candidates,
    )


def _open(path: str) -> Checkpoint:
    checkpoint = find(path)
    if checkpoint is None:
        raise NotFoundError(f"[inspect] expected a checkpoint, got none at {path!r}")
    return checkpoint


def _show_head(checkpoint: Checkpoint, as_json: bool) -> None:
    manifest, tensors = checkpoint.manifest, checkpoint.tensors
    saved = manifest.times.get("saved")
    if as_json:
        emit_json(
            {
                "checkpoint": checkpoint.prefix,
                "step": manifest.step,
                "saved": saved,
                "num_bytes": sum(file.num_bytes for file in manifest.files),
                "chain": [base.name for base in checkpoint.chain],
                "tensors": {name: asdict(fact) for name, fact in tensors.items()},
            }
        )
        return
    moment = "-"
    if saved is not None:
        moment = f"{datetime.fromtimestamp(saved, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    num_bytes = sum(file.num_bytes for file in manifest.files)
    head = (checkpoint.prefix, manifest.step, moment, f"{num_bytes:,}", len(manifest.files))
    emit_table(("checkpoint", "step", "saved", "bytes", "files"), [head])
    if chain := checkpoint.chain:
        needed = "1 checkpoint" if len(chain) == 1 else f"{len(chain)} checkpoints"
        say(
            f"a link: the rows that changed since {chain[-1].name}; a restore needs {needed} more, "
            f"from {chain[0].name} on"
        )
    # The model first; states of optimizers have a path with slashes.
    names = sorted(tensors, key=lambda name: ("/" in name, name))
    rows: list[list[object]] = [
        [name, tensors[name].dtype, "x".join(map(str, tensors[name].shape)) or "1"]
        for name in names[:_NUM_TENSORS]
    ]
    rows += [["...", "", f"{len(names) - _NUM_TENSORS} more"]] if len(names) > _NUM_TENSORS else []
    if rows:
        emit_table(("dense tensor", "dtype", "shape"), rows)


def _dense_difference(one: Checkpoint, other: Checkpoint) -> dict[str, object]:
    """Return the largest difference of a number, or words, for each tensor that differs."""
    before, after = one.read_dense(), other.read_dense()
    differences: dict[str, object] = {}
    for name in sorted({*before, *after}):
        if name not in after or name not in before:
            differences[name] = f"only in {one.prefix if name in before else other.prefix}"
        elif (before[name].dtype, before[name].shape) != (after[name].dtype, after[name].shape):
            differences[name] = "another dtype or shape"
        elif not _is_same(before[name], after[name]):
            differences[name] = (before[name].double() - after[name].double()).abs().max().item()
    return differences


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit for bit: NaN is NaN."""
    pair = (each.reshape(-1).contiguous().view(torch.uint8) for each in (one, other))
    return torch.equal(*pair)
