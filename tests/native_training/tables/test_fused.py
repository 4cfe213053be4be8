"""Calls on groups whose keys come shard by shard."""

import pytest
import torch

from monolith.cluster.table_group import TableGroup
from monolith.native_training.tables.fused import fused_apply_gradients, fused_lookup
from monolith.table import Segment, Table, TableConfig, Zeros
from monolith.table.optimizers import SGD
from monolith.table.reference import ReferenceTable

KINDS = pytest.mark.parametrize("kind", [Table, ReferenceTable])


def numbered_group(kind, dims, rate=0.1):
    return TableGroup(
        kind(config)
        for config in [
            TableConfig(str(i), Segment(dim, SGD(rate), Zeros())) for i, dim in enumerate(dims)
        ]
    )


class TestFused:
    """Table vectors 14 to 16 of the reference system."""

    @KINDS
    def test_rows_shard_by_shard(self, kind):
        group = numbered_group(kind, (1, 1, 2))
        known = group.keys({"0": torch.tensor([0, 1]), "2": torch.tensor([6, 7])})
        group.assign(known, torch.ones(6))
        found = fused_lookup(group, torch.tensor([0, 4, 6, 1, 3, 7]), torch.ones(6).long(), 2)
        assert found.embeddings.tolist() == [1, 0, 1, 1, 1, 0, 1, 1]
        assert found.embedding_splits.tolist() == [4, 4]
        assert found.id_offsets.tolist() == [0, 1, 2, 3, 4, 5, 6]
        assert found.embedding_offsets.tolist() == [0, 1, 2, 4, 5, 6, 8]

    @KINDS
    def test_gradients_shard_by_shard(self, kind):
        group = numbered_group(kind, (1, 2))
        group.assign(group.keys({"0": torch.tensor([0, 1])}), torch.ones(2))
        ids, sizes = torch.tensor([0, 4, 1, 3]), torch.ones(4, dtype=torch.int32)
        grads = -torch.tensor([1.0, 2, 2, 1, 2, 2])
        fused_apply_gradients(group, ids, sizes, grads, 2)
        rows = fused_lookup(group, ids, sizes, 2).embeddings
        assert torch.allclose(rows, torch.tensor([1.1, 0.2, 0.2, 1.1, 0.2, 0.2]))

    @KINDS
    def test_tables_without_ids_and_equal_keys_of_two_shards(self, kind):
        group = numbered_group(kind, (1, 2), rate=1.0)
        ids, sizes = torch.tensor([1, 1]), torch.tensor([1, 0, 1, 0])
        fused_apply_gradients(group, ids, sizes, torch.tensor([1.0, 2]), 2)
        found = fused_lookup(group, ids, sizes, 2)
        assert found.embeddings.tolist() == [-3, -3]
        assert found.embedding_splits.tolist() == [1, 1]
        assert found.id_offsets.tolist() == [0, 1, 1, 2, 2]

    @pytest.mark.parametrize(
        ("sizes", "text"),
        [
            ([1, 1], "expected 4 sizes, shards times tables, got 2"),
            ([1, 1, 1, 0], r"expected sizes >= 0 that sum up to 2 ids, got \[1, 1, 1, 0\]"),
            ([3, -1, 0, 0], r"expected sizes >= 0 that sum up to 2 ids, got \[3, -1, 0, 0\]"),
        ],
    )
    def test_wrong_sizes(self, sizes, text):
        group = numbered_group(Table, (1, 2))
        with pytest.raises(ValueError, match=rf"\[fused_lookup\] {text}"):
            fused_lookup(group, torch.tensor([1, 2]), torch.tensor(sizes), 2)

    def test_wrong_gradients(self):
        group = numbered_group(Table, (1, 2))
        ids, sizes = torch.tensor([1, 2]), torch.tensor([1, 1])
        text = (
            r"\[fused_apply_gradients\] expected grads with 3 numbers, the rows of all ids, got 2"
        )
        with pytest.raises(ValueError, match=text):
            fused_apply_gradients(group, ids, sizes, torch.ones(2), 1)
