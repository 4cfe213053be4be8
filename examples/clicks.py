"""A seeded stream of clicks in which users and items arrive for ever, and tastes drift.

What decides a click is hidden; a model sees ids only:

    feature   ids per sample   what it is
    user      1                who looks
    city      1                of the user; new cities are rare
    item      1                what is shown
    author    1                of the item; new items often come from new authors
    context   1                this user in this category of items
    history   0 to 8           items that the user clicked last, each as often as it was clicked

The numbers below are part of the results that are built on them: change one, and all of those
have to be measured again.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

SEED = 20_240_229
BATCH = 4096
STEPS_PER_DAY = 12
FEATURES = ("user", "city", "item", "author", "context", "history")

USERS, NEW_USERS = 10_000, 50  # alive at any time; of them new in each step
ITEMS, NEW_ITEMS = 5_000, 25
USER_ZIPF, ITEM_ZIPF = 0.7, 1.0  # the r-th most active one turns up in proportion to r ** -zipf
CITY_CHANCE, AUTHOR_CHANCE = 0.005, 0.2  # that a new user (item) is of a new city (author)
CATEGORIES = 8
HISTORY = 8

TASTES = 4  # hidden dimensions in which a user and an item fit or do not
TASTE_SCALE, AFFINITY_SCALE, LEVEL_SCALE = 0.8, 0.8, 0.6
BASE_LOGIT = -1.2
HALF_LIFE_DAYS = 14  # after which half of what is a user's or an item's own has drifted away

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


class Batch(NamedTuple):
    """Samples of one step, as `nn.EmbeddingBag` takes them."""

    features: dict[str, tuple[torch.Tensor, torch.Tensor]]  # name -> ids (num_ids,), offsets (B,)
    labels: torch.Tensor  # 1 where clicked, float32 (B,)
    chances: torch.Tensor  # the true probability of each click, float32 (B,)


class Population:
    """Users or items: so many places, in each of them one that is alive, and its hidden tastes.

    A newcomer takes a random place and with it the popularity of that place. It joins the group
    (city or author) of another one, or founds a new one. Its tastes are those of its group, plus
    its own, which drift.
    """

    def __init__(self, random: np.random.Generator, num: int, zipf: float, group_chance: float):
        self.random, self.num, self.group_chance = random, num, group_chance
        weights = np.arange(1, num + 1) ** -zipf
        self.popularity = np.cumsum(weights) / weights.sum()
        num_groups = max(1, int(num * group_chance))
        group = random.integers(num_groups, size=num)
        self.ids = self.new_ids(num)
        self.group_ids = self.new_ids(num_groups)[group]
        self.group_tastes = self.normal(num_groups, TASTES + 1)[group]  # the last is the level
        self.own_tastes = self.normal(num, TASTES + 1)

    def new_ids(self, num: int) -> Ints:
        bounds = np.iinfo(np.int64)
        return self.random.integers(bounds.min, bounds.max, size=num, endpoint=True)

    def normal(self, *shape: int) -> Floats:
        return self.random.standard_normal(shape, dtype=np.float32)

    def renew(self, num_new: int) -> Ints:
        """Let newcomers arrive; the places that they take."""
        places = self.random.choice(self.num, num_new, replace=False)
        others = self.random.integers(self.num, size=num_new)
        founds = self.random.random(num_new) < self.group_chance
        self.ids[places] = self.new_ids(num_new)
        self.group_ids[places] = np.where(founds, self.new_ids(num_new), self.group_ids[others])
        self.group_tastes[places] = np.where(
            founds[:, None], self.normal(num_new, TASTES + 1), self.group_tastes[others]
        )
        self.own_tastes[places] = self.normal(num_new, TASTES + 1)
        return places

    def sample(self, num: int) -> Ints:
        """Places of those that turn up, by popularity, (num,)."""
        return np.searchsorted(self.popularity, self.random.random(num)).astype(np.int64)

    def tastes(self, places: Ints) -> Floats:
        """Tastes and level with variance 1, (num, TASTES + 1)."""
        tastes: Floats = (self.group_tastes[places] + self.own_tastes[places]) * np.float32(
            0.5**0.5
        )
        return tastes


class Clicks:
    """The stream: `next(clicks)` is the next batch. Equal seeds give equal streams, for ever.

    `drift` is the speed of the world: at 0.2 tastes drift, and users and items arrive, a fifth as
    fast as the numbers above say; at 0 nothing changes and no id is new.
    """

    def __init__(self, seed: int = SEED, *, drift: float = 1.0) -> None:
        self.random, self.drift = np.random.default_rng(seed), drift
        self.num_new_users, self.num_new_items = round(drift * NEW_USERS), round(drift * NEW_ITEMS)
        self.users = Population(self.random, USERS, USER_ZIPF, CITY_CHANCE)
        self.items = Population(self.random, ITEMS, ITEM_ZIPF, AUTHOR_CHANCE)
        self.affinities = self.users.normal(USERS, CATEGORIES)
        self.history = np.zeros((USERS, HISTORY), np.int64)  # a ring of item ids per user
        self.num_clicked = np.zeros(USERS, np.int64)

    def __iter__(self) -> "Clicks":
        return self

    def __next__(self) -> Batch:
        self._drift()
        newcomers = self.users.renew(self.num_new_users)
        self.items.renew(self.num_new_items)
        self.affinities[newcomers] = self.users.normal(self.num_new_users, CATEGORIES)
        self.num_clicked[newcomers] = 0
        user, item = self.users.sample(BATCH), self.items.sample(BATCH)
        category = self.items.group_ids[item] % CATEGORIES
        chances = self._chances(user, item, category)
        labels = (self.random.random(BATCH, dtype=np.float32) < chances).astype(np.float32)
        features = self._features(user, item, category)
        self._remember(user[labels == 1], item[labels == 1])
        return Batch(features, torch.from_numpy(labels), torch.from_numpy(chances))

    def _drift(self) -> None:
        # An autoregressive step that keeps the variance at 1.
        keep = np.float32(0.5 ** (self.drift / (HALF_LIFE_DAYS * STEPS_PER_DAY)))
        for tastes in (self.users.own_tastes, self.items.own_tastes, self.affinities):
            tastes *= keep
            tastes += (1 - keep**2) ** np.float32(0.5) * self.users.normal(*tastes.shape)

    def _chances(self, user: Ints, item: Ints, category: Ints) -> Floats:
        """The probability that each pair ends in a click, (B,)."""
        of_user, of_item = self.users.tastes(user), self.items.tastes(item)
        logits = BASE_LOGIT + LEVEL_SCALE * (of_user[:, -1] + of_item[:, -1])
        logits += TASTE_SCALE * (of_user[:, :-1] * of_item[:, :-1]).sum(1)
        logits += AFFINITY_SCALE * self.affinities[user, category]
        chances: Floats = 1 / (1 + np.exp(-logits))
        return chances

    def _features(
        self, user: Ints, item: Ints, category: Ints
    ) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        # An odd multiplier maps int64 to int64 one to one: contexts spread over all of them.
        contexts = self.users.ids[user] * np.int64(6364136223846793005) + category
        lengths = np.minimum(self.num_clicked[user], HISTORY)
        is_filled = np.arange(HISTORY) < lengths[:, None]  # (B, HISTORY)
        single = {
            "user": self.users.ids[user],
            "city": self.users.group_ids[user],
            "item": self.items.ids[item],
            "author": self.items.group_ids[item],
            "context": contexts,
        }
        offsets = torch.arange(BATCH)
        features = {name: (torch.from_numpy(ids), offsets) for name, ids in single.items()}
        starts = np.cumsum(lengths) - lengths
        history = self.history[user][is_filled]
        features["history"] = torch.from_numpy(history), torch.from_numpy(starts)
        return features

    def _remember(self, user: Ints, item: Ints) -> None:
        """Put the clicked item into its user's history; one per user and step."""
        user, first = np.unique(user, return_index=True)
        self.history[user, self.num_clicked[user] % HISTORY] = self.items.ids[item[first]]
        self.num_clicked[user] += 1
