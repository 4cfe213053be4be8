"""Ranks as threads of this process: quick to start, with real collectives."""

import threading

import torch.distributed as dist

from monolith.cluster.ranks.rank_group import RankGroup, RankOptions

OPTIONS = RankOptions(start_seconds=20, wait_seconds=20)


def run_ranks(num_ranks, body, options=OPTIONS):
    """The results of `body(group)` in each rank; the first error that is not another rank's."""
    store, results, errors = dist.HashStore(), [None] * num_ranks, []

    def run(rank):
        try:
            with RankGroup(store, rank, num_ranks, options) as group:
                results[rank] = body(group)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads)
    return results
