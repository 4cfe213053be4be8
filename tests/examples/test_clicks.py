import numpy as np
import pytest
import torch

from examples.clicks import (
    BATCH,
    CATEGORIES,
    FEATURES,
    HALF_LIFE_DAYS,
    HISTORY,
    ITEM_ZIPF,
    ITEMS,
    NEW_USERS,
    SEED,
    STEPS_PER_DAY,
    USERS,
    Clicks,
)


def batches(num, seed=SEED):
    clicks = Clicks(seed)
    return [next(clicks) for _ in range(num)]


def ids(batch, name):
    return batch.features[name][0]


def test_equal_seeds_give_equal_streams():
    first, second = batches(3), batches(3)
    assert torch.equal(first[-1].labels, second[-1].labels)
    for name in FEATURES:
        for one, other in zip(first[-1].features[name], second[-1].features[name], strict=True):
            assert torch.equal(one, other)


def test_another_seed_gives_another_stream():
    assert not torch.equal(ids(batches(1)[0], "user"), ids(batches(1, seed=1)[0], "user"))


@pytest.mark.parametrize("name", ["user", "city", "item", "author", "context"])
def test_ids_come_from_all_of_int64(name):
    seen = torch.cat([ids(batch, name) for batch in batches(5)])
    assert seen.dtype == torch.int64
    assert seen.min() < -(1 << 62)
    assert seen.max() > 1 << 62


def test_users_arrive_and_retire_in_every_step():
    clicks = Clicks()
    before = set(clicks.users.ids.tolist())
    next(clicks)
    after = set(clicks.users.ids.tolist())
    assert len(after - before) == len(before - after) == NEW_USERS
    assert len(after) == USERS


def test_popularity_falls_with_the_rank():
    clicks = Clicks()
    counts = np.bincount(clicks.items.sample(400_000), minlength=ITEMS)
    assert counts[0] / counts[1:10].mean() == pytest.approx(
        9 / (np.arange(2, 11) ** -ITEM_ZIPF).sum(), rel=0.05
    )


def test_half_of_the_own_tastes_is_gone_after_a_half_life():
    clicks = Clicks()
    start = clicks.users.own_tastes.copy()
    for _ in range(HALF_LIFE_DAYS * STEPS_PER_DAY):
        clicks._drift()
    assert np.corrcoef(start.flat, clicks.users.own_tastes.flat)[0, 1] == pytest.approx(
        0.5, abs=0.02
    )
    assert clicks.users.own_tastes.std() == pytest.approx(1, abs=0.02)


def test_a_slower_world_has_fewer_newcomers_and_older_tastes():
    clicks = Clicks(drift=0.2)
    before = set(clicks.users.ids.tolist())
    next(clicks)
    assert len(set(clicks.users.ids.tolist()) - before) == NEW_USERS // 5
    clicks = Clicks(drift=0.2)
    tastes = clicks.items.own_tastes.copy()
    for _ in range(HALF_LIFE_DAYS * STEPS_PER_DAY):
        clicks._drift()
    assert np.corrcoef(tastes.flat, clicks.items.own_tastes.flat)[0, 1] == pytest.approx(
        0.5**0.2, abs=0.02
    )


def test_a_world_without_drift_stays_as_it_is():
    clicks = Clicks(drift=0)
    before = clicks.users.ids.copy(), clicks.items.own_tastes.copy(), clicks.affinities.copy()
    next(clicks)
    after = clicks.users.ids, clicks.items.own_tastes, clicks.affinities
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))


def test_clicks_happen_as_often_as_their_chances_say():
    samples = batches(20)
    labels = torch.cat([batch.labels for batch in samples])
    chances = torch.cat([batch.chances for batch in samples])
    assert labels.mean().item() == pytest.approx(chances.mean().item(), abs=0.005)
    is_likely = chances > 0.7
    assert labels[is_likely].mean().item() == pytest.approx(
        chances[is_likely].mean().item(), abs=0.01
    )


def test_a_history_holds_what_its_user_clicked_before():
    clicked = set()
    for batch in batches(6):
        values, offsets = batch.features["history"]
        ends = torch.cat([offsets[1:], torch.tensor([len(values)])])
        for user, start, end in zip(ids(batch, "user").tolist(), offsets, ends, strict=True):
            assert {(user, item) for item in values[start:end].tolist()} <= clicked
        is_click = batch.labels == 1
        users, items = ids(batch, "user")[is_click], ids(batch, "item")[is_click]
        clicked.update(zip(users.tolist(), items.tolist(), strict=True))


def test_a_history_has_a_bounded_length():
    values, offsets = batches(40)[-1].features["history"]
    lengths = torch.diff(offsets, append=torch.tensor([len(values)]))
    assert lengths.min() == 0
    assert lengths.max() == HISTORY


def test_a_context_is_a_user_in_a_category():
    seen = {}
    for batch in batches(10):
        category = ids(batch, "author") % CATEGORIES
        pairs = zip(ids(batch, "user").tolist(), category.tolist(), strict=True)
        for context, pair in zip(ids(batch, "context").tolist(), pairs, strict=True):
            assert seen.setdefault(context, pair) == pair
    assert len(set(seen.values())) == len(seen) > BATCH
