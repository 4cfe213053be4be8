"""Keys of a lookup: one collective, messages of one size, and what does not fit."""

import pytest
import torch

from monolith.cluster.ranks.gradient_exchange import GradientExchange
from monolith.cluster.ranks.key_exchange import (
    _MAGIC,
    ExchangeCounts,
    KeyExchange,
    KeyMessages,
    LookupFacts,
)
from monolith.errors import DataLossError
from tests.cluster.ranks.rank_threads import run_ranks


def parts_of(rank, size, num_keys):
    """For rank r: keys 1000 rank + 10 r + i, all of the second of two tables."""
    splits = torch.tensor([0, 0, num_keys])
    return [(torch.arange(num_keys) + 1000 * rank + 10 * r, splits) for r in range(size)]


def exchange(group, num_keys_of_steps):
    keys = KeyExchange(group.lookups, 2)
    found = []
    for number in num_keys_of_steps:
        parts = parts_of(group.rank, group.size, number + group.rank)
        found.append(keys.exchange(parts, LookupFacts(number, time=7 + group.rank, now=3)))
    return found, keys.counts


@pytest.mark.parametrize("size", [1, 2, 3])
def test_each_owner_gets_its_keys_from_all_ranks(size):
    for rank, (found, _) in enumerate(run_ranks(size, lambda group: exchange(group, [4, 4, 9]))):
        for number, messages in zip([4, 4, 9], found, strict=True):
            for other, (keys, splits) in enumerate(messages.keys):
                num_keys = number + other
                expected = torch.arange(num_keys) + 1000 * other + 10 * rank
                assert keys.tolist() == expected.tolist()
                assert splits.tolist() == [0, 0, num_keys]


def test_all_ranks_see_the_facts_of_all():
    for found, _ in run_ranks(2, lambda group: exchange(group, [4])):
        assert found[0].facts == [LookupFacts(4, False, 7, 3), LookupFacts(4, False, 8, 3)]
        assert (found[0].num_samples, found[0].has_ended, found[0].number) == (8, False, 0)


def test_a_lookup_without_times_has_none():
    def body(group):
        facts = LookupFacts(0, has_ended=True)
        return KeyExchange(group.lookups, 2).exchange(parts_of(group.rank, 2, 0), facts)

    for messages in run_ranks(2, body):
        assert [facts.time for facts in messages.facts] == [None, None]
        assert messages.has_ended


def test_keys_that_do_not_fit_come_in_a_second_collective_once():
    for _, counts in run_ranks(2, lambda group: exchange(group, [100, 100, 100, 100])):
        assert counts.num_overflows == 1


def test_padding_is_a_small_share_where_sizes_vary_little():
    draw = torch.Generator().manual_seed(1)
    sizes = (2000 + torch.randn(60, generator=draw) * 40).long().tolist()
    for _, counts in run_ranks(2, lambda group: exchange(group, sizes)):
        assert counts.padding_bytes / counts.key_bytes < 0.1
        assert counts.num_overflows < 12
        assert counts.padding_share == counts.padding_bytes / counts.num_bytes


def test_a_message_that_is_none_is_refused():
    keys = KeyExchange(type("One", (), {"rank": 0, "size": 2})(), 1)
    with pytest.raises(DataLossError, match="expected the keys of a lookup from rank 1, got other"):
        keys._checked(torch.zeros(8, dtype=torch.int64), 1, 8)


@pytest.mark.parametrize("ends", [[0, 6], [3, 2]])
def test_ends_that_do_not_fit_the_need_of_a_message_are_refused(ends):
    keys = KeyExchange(type("One", (), {"rank": 0, "size": 2})(), 2)
    need = 6 + 2 + 5
    message = torch.tensor([_MAGIC, 5, 0, 7, 3, need, *ends, *[0] * 8])
    assert keys._checked(torch.tensor([*message[:6], 0, 5, *[0] * 8]), 1, 16)[5] == need
    with pytest.raises(DataLossError, match="expected the keys of a lookup from rank 1, got other"):
        keys._checked(message, 1, 16)


def test_facts_of_one_rank_are_its_own():
    assert KeyMessages(0, [LookupFacts(3)], []).num_samples == 3


def test_gradients_of_another_lookup_are_refused():
    def body(group):
        gradients = GradientExchange(
            group.gradients, [1], "float32", ExchangeCounts(), with_counts=False
        )
        gradients.send_sums(None, None, 5 + group.rank, [0.0])

    with pytest.raises(DataLossError, match=r"the gradients of lookup \d, got others from"):
        run_ranks(2, body)
