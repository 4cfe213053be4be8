import json

import numpy as np
import pyarrow as pa
import pytest

from monolith import data
from monolith.data import Columns
from monolith.data.operations.draws import Draws
from monolith.data.operations.negatives import NegativeGen
from monolith.errors import FailedPreconditionError, NotFoundError
from tests.data.operations.blocks import batch_lists, block, check_resume, rows
from tests.data.operations.pool_oracle import Pool, generate

pytestmark = pytest.mark.thorough


def made_up(num_samples, seed=0, num_items=60, num_channels=3):
    """(user, item, channel, label) of samples; channel 0 is no channel."""
    random = np.random.default_rng(seed)
    items = (num_items ** random.random(num_samples)).astype(int)
    channels = random.integers(0, num_channels + 1, num_samples)
    labels = np.where(random.random(num_samples) < 0.4, 1.0, 0.0)
    columns = (range(num_samples), items.tolist(), channels.tolist(), labels.tolist())
    return list(zip(*columns, strict=True))


def as_block(samples):
    users, items, channels, labels = map(list, zip(*samples, strict=True))
    return block(user=users, item=items, channel=channels, label=labels)


def generated(gen, samples, pool=None, epoch=0):
    out = gen(as_block(samples), Draws(epoch, 0), gen.new_pool() if pool is None else pool)
    found = rows(out)
    names = ("user", "item", "label", "instance_weight")
    return list(zip(*(found[name] for name in names), strict=True))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cache_only_pos": True},
        {"origin_neg_in_pool_proba": 0.3, "seed": 4},
        {"throw_origin": True},
        {"throw_origin_neg": True, "neg_sample_declay_factor": 2.0},
        {"real_neg_instance_weight": 0.5},
        {"channel": "channel"},
        {"channel": "channel", "easy_hard_ratio": 0.5},
        {"channel": "channel", "easy_hard_ratio": 1.0, "cache_only_pos": True},
    ],
)
def test_negatives_are_those_of_a_plain_loop(options):
    gen = NegativeGen(3, "item", start_num=5, max_item_num=12, **options)
    samples = made_up(400)
    if gen.channel is None:
        samples = [(user, item, 3, label) for user, item, _, label in samples]
    pool, plain = gen.new_pool(), Pool(12, 5)
    expected = generate(samples, plain, gen, epoch=2)
    found = generated(gen, samples, pool, epoch=2)
    assert [each[:3] for each in found] == [each[:3] for each in expected]
    assert [each[3] for each in found] == pytest.approx([each[3] for each in expected])
    assert list(pool.counts()) == plain.counts()


def test_bounds_of_the_reference():
    samples = made_up(1000, num_items=2000)
    num_positives = sum(label == 1 for *_, label in samples)
    found = generated(NegativeGen(2, "item", start_num=100), samples)
    num_generated = sum(label == -1 for _, _, label, _ in found)
    assert (num_positives - 100) * 2 <= num_generated <= num_positives * 2
    assert sum(label == 1 for _, _, label, _ in found) == num_positives


def one_positive(**options):
    """What is generated for a last positive, of user 9 and item 9, after items 1 to 4."""
    samples = block(
        user=[1, 2, 3, 4, 9],
        item=[1, 2, 3, 4, 9],
        brand=[[10], [20], [30], [40], [90]],
        label=[[0.0, 5.0]] * 4 + [[1.0, 5.0]],
        actions=[[1]] * 4 + [[7, 2]],
        instance_weight=[1.0] * 4 + [2.0],
    )
    gen = NegativeGen(4, "item", ["brand"], start_num=0, **options)
    found = rows(gen(samples, Draws(0, 0), gen.new_pool()))
    return {name: values[4:-1] for name, values in found.items()} if found["user"] else found


def test_a_negative_has_the_columns_of_its_positive_and_of_another_item():
    found = one_positive()
    assert found["user"] == [9] * 4
    assert found["brand"] == [[10 * item] for item in found["item"]]
    assert found["label"] == [[-1.0, 5.0]] * 4
    assert found["actions"] == [[7, 2]] * 4


def test_labels_and_actions_of_negatives_may_be_given():
    found = one_positive(negative_label=-5, negative_action=0)
    assert (found["label"][0], found["actions"][0]) == ([-5.0, 5.0], [0])


def test_the_weight_of_negatives_may_be_given():
    assert one_positive(sampled_neg_instance_weight=0.25)["instance_weight"] == [0.25] * 4
    assert one_positive(unbias_sampled_neg=False)["instance_weight"] == [1.0] * 4


def test_weights_that_come_in_are_kept():
    samples = block(item=[1, 2], label=[1.0, 0.0], instance_weight=[3.0, 4.0])
    gen = NegativeGen(1, "item", real_neg_instance_weight=0.5)
    assert rows(gen(samples, Draws(0, 0), gen.new_pool()))["instance_weight"] == [3.0, 2.0]


@pytest.mark.parametrize(("priority", "count"), [("7", 4), ("2,7", 0), ("", 4)])
def test_the_best_action_may_make_a_positive(priority, count):
    found = one_positive(positive_actions=[7], action_priority=priority)
    assert len(found["user"]) == count


def test_negatives_with_an_action_may_be_stored_too():
    options = {"cache_only_pos": True, "start_num": 0}
    samples = block(item=[1, 2, 9], label=[0.0, 0.0, 1.0], actions=[[5], [6], []])
    gen = NegativeGen(1, "item", cache_negative_actions=[6], **options)
    pool = gen.new_pool()
    gen(samples, Draws(0, 0), pool)
    assert [item for _, item, _, _ in pool.counts()] == [2, 9]


def test_samples_without_an_item_are_not_stored():
    gen = NegativeGen(1, "item", start_num=0)
    pool = gen.new_pool()
    gen(block(item=[[], [4, 5]], label=[1.0, 0.0]), Draws(0, 0), pool)
    assert [item for _, item, _, _ in pool.counts()] == [4]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"neg_num": 0}, "expected neg_num of at least 1, got 0"),
        ({"easy_hard_ratio": 2}, "expected easy_hard_ratio from 0 to 1, got 2"),
        ({"origin_neg_in_pool_proba": -1}, "expected origin_neg_in_pool_proba from 0 to 1, got -1"),
        (
            {"positive_actions": [1, 2], "cache_negative_actions": [2]},
            r"other cache_negative_actions than positive_actions, got \[2\] in both",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(options, text):
    with pytest.raises(ValueError, match=text):
        NegativeGen(**{"neg_num": 1, "item": "item", **options})


COLUMNS = Columns(["user", "item", "channel"], [], ["label"])
GEN = NegativeGen(2, "item", channel="channel", easy_hard_ratio=0.3, start_num=3, max_item_num=20)


def source(num_samples=900, block_size=50):
    table = pa.Table.from_batches([as_block(made_up(num_samples))])
    blocks = data.arrow_table(table, columns=COLUMNS)
    return blocks.shuffle(block_size)  # so that there are many blocks


def test_a_pipeline_resumes_without_a_folder():
    whole = check_resume(source().generate_negatives(GEN).batch(32))
    assert sum(labels["label"].count(-1.0) for _, labels, _ in whole) > 300


def test_a_pipeline_resumes_from_files_of_the_pool(tmp_path):
    def pipeline():
        saved = {"pool_folder": tmp_path, "save_every": 100, "num_kept": 100}
        return source().generate_negatives(GEN, **saved)

    whole = check_resume(pipeline().batch(32).prefetch(3))
    assert whole == [batch_lists(batch) for batch in source().generate_negatives(GEN).batch(32)]
    assert len(list(tmp_path.iterdir())) == 9


def test_a_state_is_small_and_what_is_read_again_is_bounded(tmp_path):
    saved = source().generate_negatives(GEN, pool_folder=tmp_path, save_every=100)
    batches = iter(saved.batch(32))
    states = [json.dumps(batches.state_dict()) for _ in batches]
    assert max(map(len, states)) < 2000
    blocks = [json.loads(each)["state"]["source"]["blocks"] for each in states]
    assert max(blocks) <= 2


def test_the_last_files_of_the_pool_stay(tmp_path):
    pipeline = source().generate_negatives(GEN, pool_folder=tmp_path, save_every=100, num_kept=2)
    batches = iter(pipeline.batch(32))
    for _ in range(10):
        next(batches)
    state = batches.state_dict()
    assert len(list(batches)) > 10
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "pool-000000-000000000000800.arrow",
        "pool-000000-000000000000900.arrow",
    ]
    with pytest.raises(NotFoundError, match=r"expected a pool at .*pool-000000-"):
        pipeline.batch(32).resume(state)


def test_every_epoch_begins_with_the_initial_pool(tmp_path):
    pool = GEN.new_pool()
    GEN(as_block(made_up(100)), Draws(0, 0), pool)
    pool.save(tmp_path / "initial")
    pipeline = source(200).generate_negatives(GEN, initial_pool=tmp_path / "initial")
    whole = check_resume(pipeline.repeat(2).batch(16))
    without = [batch_lists(b) for b in source(200).generate_negatives(GEN).repeat(2).batch(16)]
    assert sum(len(labels["label"]) for _, labels, _ in whole) > sum(
        len(labels["label"]) for _, labels, _ in without
    )


def test_a_state_fits_only_the_same_initial_pool(tmp_path):
    pool = GEN.new_pool()
    pool.save(tmp_path / "initial")
    with_pool = source(200).generate_negatives(GEN, initial_pool=tmp_path / "initial").batch(16)
    state = iter(with_pool).state_dict()
    with pytest.raises(FailedPreconditionError, match="expected a state of this pipeline"):
        source(200).generate_negatives(GEN).batch(16).resume(state)


@pytest.mark.parametrize("name", ["save_every", "num_kept"])
def test_numbers_of_files_are_checked(name):
    with pytest.raises(ValueError, match=rf"expected at least 1 of {name}, got 0"):
        source().generate_negatives(GEN, **{name: 0})
