"""The state of a lookup between its phases, as plain tensors that can wait in a queue."""

from collections.abc import MutableMapping
from typing import Any

import torch

from monolith.native_training.ops.layout_config import FeatureConfigs
from monolith.native_training.ops.sharding import ShardedFids
from monolith.ops import Ragged

Bundle = MutableMapping[str, Any]
"""Names -> tensors, lists of tensors, and numbers."""

_PREFIX = "__sharding_sparse_fids__"
_EMBEDDINGS = f"{_PREFIX}embeddings"
_TENSORS = (
    "fids",
    "fid_sizes",
    "row_splits",
    "row_splits_sizes",
    "emb_size",
    "fid_offset",
    "feature_offset",
    "nfl_offset",
    "cuts",
)
_BY_SHARD = 4  # the version of `sharding_sparse_fids` with one tensor per shard


def put_sharded(bundle: Bundle, sharded: ShardedFids) -> None:
    """Store the ids of a batch, their offsets and sizes."""
    bundle[f"{_PREFIX}batch_size"] = sharded.batch_size
    bundle.update({_PREFIX + name: getattr(sharded, name) for name in _TENSORS})


def sharded_of(where: str, bundle: Bundle, configs: FeatureConfigs, num_shards: int) -> ShardedFids:
    """What `put_sharded` stored."""
    if f"{_PREFIX}batch_size" not in bundle:
        raise ValueError(
            f"{where} expected the auxiliary_bundle of a lookup, got one without ids of a batch"
        )
    tensors = [bundle[_PREFIX + name] for name in _TENSORS]
    batch_size = bundle[f"{_PREFIX}batch_size"]
    return ShardedFids(_BY_SHARD, num_shards, configs.table_names, batch_size, *tensors)


def shard_keys(sharded: ShardedFids) -> list[Ragged]:
    """The ids of each shard, with a row for each table."""
    lengths = sharded.fid_list_table_row_length.view(sharded.ps_num, -1)
    return keys_of(sharded.fids, lengths)


def keys_of(ids: torch.Tensor, lengths: torch.Tensor) -> list[Ragged]:
    """The same of ids, and of how many of them each table has, (num_shards, num_tables)."""
    splits = torch.nn.functional.pad(lengths.cumsum(1), (1, 0))
    parts = torch.split_with_sizes(ids, splits[:, -1].tolist())
    return [Ragged(part, own) for part, own in zip(parts, splits, strict=True)]


def occurrences(sharded: ShardedFids, dims: torch.Tensor) -> torch.Tensor:
    """Return how often the batch has each of the ids, int32 (num_fids,).

    Args:
        sharded: ids of a batch.
        dims: width of the rows of each table, in the order of names.
    """
    # A code is the number of the list, table by table, and the float at which the row begins.
    lists, floats = sharded.fid_offset >> 32, sharded.fid_offset & 0xFFFFFFFF
    tables = torch.arange(len(dims), device="cpu").repeat_interleave(sharded.ps_num)
    ends = sharded.fid_sizes.cumsum(0)
    begins = (ends - sharded.fid_sizes).view(sharded.ps_num, -1).t().reshape(-1)
    places = begins[lists] + floats // dims[tables[lists]]
    return torch.bincount(places, minlength=len(sharded.fids)).int()


def put_embeddings(bundle: Bundle, embeddings: list[torch.Tensor]) -> None:
    """Store the rows of each shard."""
    bundle[_EMBEDDINGS] = embeddings


def take_embeddings(where: str, bundle: Bundle) -> list[torch.Tensor]:
    """What `put_embeddings` stored."""
    if _EMBEDDINGS not in bundle:
        raise ValueError(
            f"{where} expected an auxiliary_bundle with rows, got one without; run the lookup first"
        )
    found: list[torch.Tensor] = bundle[_EMBEDDINGS]
    return found
