"""Negative generation, sample after sample, in plain Python."""

from collections import OrderedDict

from monolith.data.order import uniform


class Pool:
    """Channel -> items, oldest first; of an item: its features, seen, drawn."""

    def __init__(self, max_items, start_items):
        self.max_items, self.start_items, self.channels = max_items, start_items, {}

    def store(self, channel, item, features):
        items = self.channels.setdefault(channel, OrderedDict())
        if item in items:
            items[item][1] += 1
            return
        items[item] = [features, 1, 0]
        if len(items) > self.max_items:
            items.popitem(last=False)

    def draw(self, channel, chance):
        """Features, time factor and frequency factor; None where there are too few items."""
        items = self.channels.get(channel, {})
        if len(items) <= self.start_items:
            return None
        at = int(chance * len(items))
        entry = list(items.values())[at]
        entry[2] += 1
        return entry[0], (at + 1) / len(items), 1 / entry[2]

    def counts(self):
        return [
            (channel, item, seen, drawn)
            for channel, items in self.channels.items()
            for item, (_, seen, drawn) in items.items()
        ]


def generate(samples, pool, gen, *, epoch=0):
    """Samples are (user, item, channel, label); gives them with negatives and their weights."""
    found = []
    for number, (user, item, channel, label) in enumerate(samples):
        is_positive = label == gen.positive_label
        coin = uniform(1, gen.seed, epoch, 0, first=number)[0]
        is_stored = not gen.cache_only_pos and coin < gen.origin_neg_in_pool_proba
        if (is_positive or is_stored) and channel != 0:
            pool.store(channel, item, item)
        for j in range(gen.neg_num if is_positive else 0):
            chance, switch, which = (
                uniform(1, gen.seed, epoch, stream, first=number * gen.neg_num + j)[0]
                for stream in (1, 2, 3)
            )
            drawn = pool.draw(_channel(pool, channel, gen, switch, which), chance)
            if drawn is None:
                break
            weight = 1 + gen.neg_num * drawn[1] ** gen.neg_sample_declay_factor * drawn[2]
            found.append((user, drawn[0], gen.negative_label, weight))
        if not gen.throw_origin and (is_positive or not gen.throw_origin_neg):
            own = 1.0 if is_positive else gen.real_neg_instance_weight
            found.append((user, item, label, own))
    return found


def _channel(pool, own, gen, switch, which):
    if gen.channel is None or switch >= gen.easy_hard_ratio or len(pool.channels) < 2:
        return own
    goal = which * sum(len(items) for items in pool.channels.values())
    for channel, items in pool.channels.items():
        goal -= len(items)
        if goal < 0:
            return channel
    raise AssertionError
