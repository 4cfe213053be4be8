import pytest

import monolith as ml
from examples import movielens
from examples.movielens import Likes, LikesSettings, read_ratings
from monolith.errors import DataLossError
from tests.examples.losses import losses_of

# user, item, rating, time; not in the order of time
RATINGS = [(1, 10, 5, 40), (1, 11, 3, 10), (2, 10, 4, 20), (1, 12, 4, 30), (2, 13, 1, 50)]
HEADER = "userId,movieId,rating,timestamp\n"


def write(path, ratings, name):
    """As published: ratings of ml-25m have halves."""
    if name == "ratings.csv":
        text = HEADER + "".join(f"{u},{i},{float(r)},{t}\n" for u, i, r, t in ratings)
    else:
        separator = {"u.data": "\t", "ratings.dat": "::"}[name]
        text = "".join(separator.join(map(str, rating)) + "\n" for rating in ratings)
    (path / name).write_text(text)
    return str(path / name)


def task(path, **settings):
    return Likes(LikesSettings(data={"train": path}, **settings))


@pytest.mark.parametrize("name", ["u.data", "ratings.dat", "ratings.csv"])
def test_each_published_form_is_read_by_time(tmp_path, name):
    rows = read_ratings(write(tmp_path, RATINGS, name)).rows
    assert rows["user"].to_pylist() == [1, 2, 1, 1, 2]
    assert rows["item"].to_pylist() == [11, 10, 12, 10, 13]
    assert rows["liked"].to_pylist() == [False, True, True, True, False]


def test_half_a_star_below_four_is_not_liked(tmp_path):
    path = write(tmp_path, [(1, 2, 3.5, 1), (1, 3, 4.5, 2)], "ratings.csv")
    assert read_ratings(path).rows["liked"].to_pylist() == [False, True]


def test_a_history_has_what_the_user_liked_before(tmp_path):
    source = task(write(tmp_path, RATINGS * 2, "u.data"), epochs=1).source(ml.Mode.TRAIN)
    (batch,) = source
    found = {
        (user, item, tuple(history))
        for (user,), (item,), history in zip(
            *(batch.features[name].to_lists() for name in ("user", "item", "history")), strict=True
        )
    }
    assert (1, 11, ()) in found  # the first of user 1
    assert (1, 10, (12, 12)) in found
    assert (2, 13, (10, 10)) in found


def test_a_history_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(movielens, "HISTORY", 2)
    path = write(tmp_path, [(1, item, 5, item) for item in range(20)], "u.data")
    (batch,) = task(path).source(ml.Mode.EVAL)
    assert batch.features["history"].to_lists() == [[16, 17], [17, 18]]


def test_the_newest_tenth_is_for_evaluation(tmp_path):
    path = write(tmp_path, [(1, item, 5, 1000 - item) for item in range(30)], "ratings.dat")
    (train,) = task(path, epochs=1).source(ml.Mode.TRAIN)
    (held_out,) = task(path).source(ml.Mode.EVAL)
    assert held_out.features["item"].to_lists() == [[2], [1], [0]]
    assert sorted(train.features["item"].values.tolist()) == list(range(3, 30))


def test_it_learns_what_users_like(tmp_path):
    pairs = [(user, item) for user in range(40) for item in range(40)]
    ratings = [(u, i, 5 if u % 2 == i % 2 else 1, 7 * u + 11 * i) for u, i in pairs]
    trainer = ml.Trainer(task(write(tmp_path, ratings, "u.data"), epochs=30, batch_size=128))
    losses = losses_of(trainer)
    assert losses[0] > 0.6
    assert losses[-1] < 0.2


def test_a_file_of_another_form_is_refused_with_all_forms(tmp_path):
    (tmp_path / "users.dat").write_text("1::F::1::10::48067\n")
    message = (
        r"expected u\.data of ml-100k .*, or ratings\.dat of ml-1m .*, or ratings\.csv of ml-25m "
        r".*, got '1::F::1::10::48067' in line 1 of '.*users\.dat'"
    )
    with pytest.raises(ValueError, match=message):
        task(str(tmp_path / "users.dat")).source(ml.Mode.TRAIN)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1\tx\t3\t4", "line 6: column 'movieId': .*'x'"),
        ("1\t2\t3", "line 6: .*Expected 4 columns, got 3"),
        ("1\t2\t6\t4", "sample 5 .* expected a label from 0.5 to 5 in column 'rating', got 6"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = write(tmp_path, RATINGS, "u.data")
    with open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")
    with pytest.raises(DataLossError, match=r"u\.data', " + message):
        read_ratings(path)


def test_another_file_may_be_evaluated(tmp_path):
    paths = {}
    for mode, first in (("train", 0), ("eval", 100)):
        (tmp_path / mode).mkdir()
        ratings = [(1, first + n, 5, n) for n in range(10)]
        paths[mode] = write(tmp_path / mode, ratings, "u.data")
    (batch,) = Likes(LikesSettings(data=paths)).source(ml.Mode.EVAL)
    assert batch.features["item"].to_lists() == [[109]]


def test_without_a_path_the_flag_is_named():
    with pytest.raises(ValueError, match=r"\[Likes\] .* for train, got none; give --data train="):
        Likes().source(ml.Mode.TRAIN)
