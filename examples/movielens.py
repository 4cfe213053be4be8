"""MovieLens: does a user like a movie, rating it 4 or more, given what they liked before?

Takes the files as GroupLens publishes them. The newest tenth of a file is for evaluation and is not
trained on, so that the same file serves for both.

    ml-100k  u.data        196 <tab> 242 <tab> 3 <tab> 881250949
    ml-1m    ratings.dat   1::1193::5::978300760
    ml-25m   ratings.csv   userId,movieId,rating,timestamp, and a line such as 1,296,5.0,1147880044

Example: .venv/bin/python examples/movielens.py ml-1m/ratings.dat
         monolith train examples/movielens.py --data train=ratings.csv --data eval=ratings.csv
"""

import functools
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

# Started as a file, Python looks for modules beside it; `examples` itself lies one level up.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import monolith as ml
from examples.run import path_of, run_task
from monolith.data import Columns, IdColumn, Label

Ints = npt.NDArray[np.int64]
DIM, HISTORY = 16, 20
LIKED = 4  # the least rating of a movie that was liked
EVAL_SHARE = 0.1
NAMES = ["userId", "movieId", "rating", "timestamp"]
TYPES = {"userId": "int64", "movieId": "int64", "rating": "float32", "timestamp": "int64"}
IDS = [IdColumn("user", "userId"), IdColumn("item", "movieId")]
COLUMNS = Columns(IDS, labels=[Label("rating", low=0.5, high=5)], time="timestamp")
TABS, COLONS = ({"separator": separator, "names": NAMES} for separator in ("\t", "::"))
FORMS: dict[str, tuple[str, dict[str, Any]]] = {  # name: first line, options of `csv`
    "u.data of ml-100k (4 numbers, tabs between)": (r"\d+(\t\d+){3}", TABS),
    "ratings.dat of ml-1m (4 numbers, '::' between)": (r"\d+(::\d+){3}", COLONS),
    "ratings.csv of ml-25m (userId,movieId,rating,timestamp)": (",".join(NAMES), {}),
}


class Ratings(NamedTuple):
    """Ratings by time; a history is what the user liked before."""

    rows: pa.Table  # user, item, liked, and where the history is in `liked_items`: begin, end
    liked_items: Ints  # by user, then by time


def options_of(path: str) -> dict[str, Any]:
    """How `csv` reads a file, by its first line."""
    with open(path, encoding="utf-8", errors="replace") as file:
        line = file.readline().rstrip("\r\n")
    for first_line, options in FORMS.values():
        if re.fullmatch(first_line, line):
            return options
    raise ValueError(
        f"[movielens] expected {', or '.join(FORMS)}, got {line[:60]!r} in line 1 of {path!r}"
    )


@functools.lru_cache(maxsize=1)
def read_ratings(path: str) -> Ratings:
    """All ratings of a file, which fit into memory: 25 M of them take 1 GB."""
    text = ml.data.csv(path, types=TYPES, columns=COLUMNS, **options_of(path))
    parts = [
        (each.features["user"].values, each.features["item"].values, each.label, each.time)
        for each in text.batch(1 << 20)
    ]
    user, item, rating, time = (
        torch.cat(list(column)).numpy() for column in zip(*parts, strict=True)
    )
    order = np.lexsort((time, user))
    user, item, liked, time = user[order], item[order], rating[order] >= LIKED, time[order]
    end: Ints = np.cumsum(liked) - liked  # liked before this one, by this user and all before
    is_first = np.append(True, user[1:] != user[:-1])
    begin = np.maximum(end - HISTORY, end[is_first][np.cumsum(is_first) - 1])
    columns = {"user": user, "item": item, "liked": liked, "begin": begin, "end": end}
    by_time = np.argsort(time, kind="stable")
    rows = pa.table({name: column[by_time] for name, column in columns.items()})
    return Ratings(rows, item[liked])


def add_history(block: pa.RecordBatch, liked_items: Ints) -> pa.RecordBatch:
    """Give each sample a list: the liked items from `begin` to `end`."""
    begin, end = block["begin"].to_numpy(), block["end"].to_numpy()
    splits = np.append(0, np.cumsum(end - begin))
    places = np.arange(splits[-1]) + np.repeat(begin - splits[:-1], end - begin)
    items = pa.array(liked_items[places])
    return block.append_column("history", pa.ListArray.from_arrays(splits.astype(np.int32), items))


@dataclass
class LikesSettings(ml.TaskSettings):
    """Of this task; `--set epochs=10`."""

    batch_size: int = 1024
    epochs: int = 5


class Likes(ml.Task):
    """Whether a user likes a movie."""

    features = [
        ml.Feature("user", dim=DIM, optimizer=ml.Adagrad(0.2)),
        ml.Feature("item", dim=DIM, optimizer=ml.Adagrad(0.2)),
        ml.Feature("history", shares="item", combiner="mean"),
    ]
    label, Settings = "liked", LikesSettings
    settings: LikesSettings

    def source(self, mode: ml.Mode) -> ml.data.Pipeline:
        has_own = mode in self.settings.data  # else the newest ratings of what is trained on
        ratings = read_ratings(path_of(self, mode if has_own else ml.Mode.TRAIN))
        num_train = len(ratings.rows) - int(EVAL_SHARE * len(ratings.rows))
        is_training = mode is ml.Mode.TRAIN
        rows = ratings.rows.slice(0, num_train) if is_training else ratings.rows.slice(num_train)
        columns = Columns(["user", "item", "begin", "end"], labels=["liked"])
        history = functools.partial(add_history, liked_items=ratings.liked_items)
        source = ml.data.arrow_table(rows, columns=columns)
        source = source.map(history, adds=Columns(["history"])).drop("begin", "end")
        if is_training:
            source = source.shuffle(100_000).repeat(self.settings.epochs)
        return source.batch(self.settings.batch_size)

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4 * DIM, 64), nn.ReLU(), nn.Linear(64, 1))

    def loss(
        self, model: nn.Module, inputs: ml.Inputs, batch: ml.data.Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        match = inputs.pooled["user"] * inputs.pooled["item"]
        logits = model(torch.cat([inputs.pooled.joined, match], 1)).squeeze(1)
        return binary_cross_entropy_with_logits(logits, batch.label), logits.sigmoid()


if __name__ == "__main__":
    run_task(Likes, sys.argv[1:])
