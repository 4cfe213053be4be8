"""Tables with a shard in each rank, against servers."""

import pytest
import torch

from monolith.cluster import LocalServers
from tests.native_training.tables.ranked_calls import (
    batch_of,
    ranks_train,
    servers_train,
    table_of,
)
from tests.suites.table_base import NOW

CALLS = "tests.native_training.tables.ranked_calls"


@pytest.mark.dist
@pytest.mark.req("NT-DPS-T10")
def test_two_ranks_return_the_rows_of_servers_after_the_same_updates(rank_forks, tmp_path):
    (first, rows, _), (second, others, _) = rank_forks.run(tmp_path, 2, f"{CALLS}:ranks_train", 3)
    expected, all_rows = servers_train(3)
    for step in range(3):
        both = [a + b for a, b in zip(first[step], second[step], strict=True)]
        for found, output in zip(both, expected[step], strict=True):
            torch.testing.assert_close(torch.tensor(found), torch.tensor(output))
    assert {name: rows[name] + others[name] for name in rows} == all_rows
    assert min(sum(rows.values()), sum(others.values())) > 0
    assert expected[0] != expected[2]


@pytest.mark.dist
def test_the_latest_time_of_all_ranks_counts(rank_forks, tmp_path):
    found = rank_forks.run(tmp_path, 2, f"{CALLS}:ranks_train", 1)
    assert [max(latest) for _, _, latest in found] == [NOW + 1] * 2


def test_one_rank_is_one_shard(alone):
    seen, _, _ = ranks_train(2)
    assert seen[0] != seen[1]


def test_rows_of_ranks_cannot_be_assigned(alone):
    with table_of(1, ranks=alone.group()) as table:
        for verb in (table.assign, table.assign_add):
            with pytest.raises(NotImplementedError, match="expected shards on servers, got shards"):
                verb({"one": (torch.tensor([1]), torch.ones(1, 1))})


def test_the_number_of_ranks_is_that_of_shards(alone):
    with pytest.raises(ValueError, match="expected a rank for each of 2 shards, got 1"):
        table_of(2, ranks=alone.group())


def test_servers_and_ranks_together_are_refused(alone):
    with LocalServers(1) as servers, pytest.raises(ValueError, match="got both"):
        table_of(1, servers, alone.group())


def test_a_lookup_over_ranks_has_phases_too(alone):
    with table_of(1, ranks=alone.group()) as table:
        rest = table.lookup(batch_of(0), ret_lookup_callable_fn=True)
        assert rest().keys() == {"bias", "one", "vec"}
