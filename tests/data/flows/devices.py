"""Streams of three devices, and their flows."""

import numpy as np
import pyarrow as pa

from monolith import data
from monolith.data.columns import Columns

NAMES = ["pc", "mobile", "cloud"]


def rows(num_samples, first=0):
    """Sample i has user i, the device of a fixed random sequence, and time i."""
    number = np.arange(first, first + num_samples)
    device = np.random.default_rng(7).integers(0, 3, first + num_samples)[first:]
    return pa.table({"user": number, "device": device, "t": number})


def devices(num_samples=1000):
    return data.arrow_table(rows(num_samples), columns=Columns(["user", "device"], time="t"))


def split(source, **options):
    return source.split("device", dict(zip(NAMES, range(3), strict=True)), **options)


def expected(place, num_samples=1000):
    return [
        i for i, device in enumerate(rows(num_samples)["device"].to_pylist()) if device == place
    ]


class Counted:
    """A source that counts its openings and blocks, and which of its cursors are open."""

    def __init__(self, stage):
        self.stage, self.num_blocks, self.opened, self.open_cursors = stage, 0, 0, 0

    def describe(self):
        return self.stage.describe()

    def open(self, epoch, state=None):
        counted, cursor = self, self.stage.open(epoch, state)
        counted.opened += 1
        counted.open_cursors += 1

        class Cursor:
            is_open = True

            def next(self):
                counted.num_blocks += 1
                return cursor.next()

            def close(self):
                counted.open_cursors -= self.is_open
                self.is_open = False
                cursor.close()

            state = cursor.state
            progress = cursor.progress

        return Cursor()


def counted_split(num_samples=1000, **options):
    source = devices(num_samples)
    counter = Counted(source.stage)
    return split(source._then(counter), **options), counter
