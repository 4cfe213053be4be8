"""A rank that follows: it joins each collective of rank 0 without keys of its own.

So the facts of engines, which know one batch, are stated of rank 0, whose rows are in both ranks.
"""

import json
import sys

import torch

from monolith.cluster.ranks.rank_group import RankOptions, group_of_file
from monolith.cluster.ranks.rank_tables import RankTables
from monolith.cluster.ranks.ranks_engine import RanksEngine
from monolith.cluster.server_host import config_text
from monolith.features import BagFeature
from monolith.ops import Ragged
from monolith.table.disk.config_json import config_from_json

OPTIONS = RankOptions(start_seconds=60, wait_seconds=60)


def open_tables(ranks, configs, clock):
    return [ranks.servers.table(config, ranks.routing, clock) for config in configs]


class LeadingEngine(RanksEngine):
    """The engine of rank 0, which tells the other rank what comes."""

    def __init__(self, tables, features, ranks):
        self._ranks = ranks
        self._tell("make", [config_text(t.config) for t in tables], [_plain(f) for f in features])
        try:
            super().__init__(tables, features, ranks)
        finally:
            ranks.group.control.gather(None)  # the other rank has its engine

    def _tell(self, *words):
        self._ranks.group.control.share(words)

    def _pull(self, requests, initial):
        self._tell("lookup", initial)
        return super()._pull(requests, initial)

    def _send(self, summed):
        if summed.owned is None:
            items = () if summed.local is None else summed.local.items
            self._tell("send", self._covered or tuple(looked.number for looked, _ in items))
        return super()._send(summed)

    def squares(self, summed):
        self._send(summed)
        self._tell("squares")
        return super().squares(summed)

    def step(self, summed, rates, times):
        self.check_open("[Features.step]")
        self._send(summed)
        self._tell("step", list(rates), list(times))
        applied, error = None, None
        try:
            applied = super().step(summed, rates, times)
        except ValueError as refused:
            error = refused
        _, theirs = self._ranks.group.control.gather(())
        if error is not None:
            raise error
        return type(applied)(*map(sum, zip(applied, theirs, strict=True)))


def _plain(feature):
    return feature.name, feature.table, feature.combiner, feature.max_length


class Follower:
    """Does what rank 0 tells."""

    def __init__(self, ranks):
        self._ranks, self._engine, self._sum = ranks, None, None

    def run(self):
        while (words := self._ranks.group.control.share(None))[0] != "end":
            getattr(self, f"do_{words[0]}")(*words[1:])

    def do_make(self, configs, features):
        configs = [config_from_json(json.loads(config), "[Follower]") for config in configs]
        features = [BagFeature(*feature) for feature in features]
        try:
            tables = open_tables(self._ranks, configs, lambda: 0)
            self._engine = RanksEngine(tables, features, self._ranks)
        except (TypeError, ValueError):  # rank 0 sees the error too
            self._engine = None
        self._ranks.group.control.gather(None)

    def do_lookup(self, initial):
        ids = {feature.name: Ragged.from_lists([]) for feature in self._engine.features}
        self._engine.lookup(ids, None, None, "initial" if initial else "zeros")

    def do_send(self, numbers):
        self._engine.cover(numbers)
        self._sum = self._engine.sum([])
        self._engine._send(self._sum)

    def do_squares(self):
        self._engine.squares(self._sum)

    def do_step(self, rates, times):
        try:
            applied = self._engine.step(self._sum, rates, times)
        except ValueError:
            applied = ()
        self._ranks.group.control.gather(tuple(applied))


def main():
    torch.set_num_threads(1)
    path, strategy = sys.argv[1:]
    with (
        group_of_file(path, 1, 2, OPTIONS) as group,
        RankTables(group, partition_strategy=strategy) as ranks,
    ):
        Follower(ranks).run()
        group.control.gather(None)


if __name__ == "__main__":
    main()
