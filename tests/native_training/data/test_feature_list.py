import os

import pytest

from monolith.errors import InvalidArgumentError, NotFoundError
from monolith.native_training.data.feature_list import (
    Cache,
    Feature,
    FeatureList,
    Feed,
    get_feature_name_and_slot,
)
from monolith.native_training.slots import CollectingFactory, FeatureColumn, FeatureSlotConfig

TEXT = """
# comment
column_name: user, item
column_name: hour
cache_column: city

feed_name=area; shared=true; feature_id=368235
cache_name=users, capacity=1000, timeout=60; cache_type=lru
cache_key_class=Key capacity=5
feature_name=fc_user_id slot=1 depend=f_User,item method=Copy shared=T feature_version=2;
feature_name=f_user-fc_hour slot=3 args=1, 2 need_raw=yes input_optional=1,no
feature_name=later slot = 3 cache_keys=a,b feature_id=9 feature_group=x,y owner=team;
feature_name=bare
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "feature_list.conf"
    path.write_text(TEXT)
    return path


@pytest.fixture
def features(path):
    return FeatureList.parse(path)


def test_lines_become_columns_feeds_caches_and_features(features):
    assert features.column_name == ["user", "item", "hour"]
    assert features.feeds == {"area": Feed("area", True, 368235)}
    assert features.caches == {
        "city": Cache(cache_column="city"),
        "users": Cache("users", capacity=1000, timeout=60, cache_type="lru"),
        "Key": Cache(cache_key_class="Key", capacity=5),
    }
    assert len(features) == len(list(features)) == 4
    assert features.feeds["area"].name == "area"


def test_every_key_of_a_feature_is_read(features):
    assert features["fc_user_id"] == Feature(
        "fc_user_id", ("f_User", "item"), "Copy", 1, shared=True, feature_version=2
    )
    expected = Feature(
        "f_user-fc_hour", slot=3, args=("1", "2"), need_raw=True, input_optional=(True, False)
    )
    assert features["f_user-fc_hour"] == expected
    later = Feature(
        "later", slot=3, cache_keys=("a", "b"), feature_id=9, feature_group=("x", "y"),
        extra={"owner": "team"},
    )  # fmt: skip
    assert features["later"] == later


def test_the_first_sign_of_equality_ends_the_key(path):
    path.write_text("feature_name=f method=Bucket?size=8 owner=a=b")
    feature = FeatureList.parse(path)["f"]
    assert (feature.method, feature.extra) == ("Bucket?size=8", {"owner": "a=b"})


def test_a_feature_is_written_as_its_line(features):
    line = "feature_name=f_user-fc_hour slot=3 args=1,2 need_raw=true input_optional=true,false"
    assert str(features["f_user-fc_hour"]) == line
    assert str(features["later"]).endswith("feature_group=x,y owner=team")


@pytest.mark.parametrize(
    ("item", "name"),
    [
        ("fc_user_id", "fc_user_id"),
        ("user_id", "fc_user_id"),
        ("user-hour", "f_user-fc_hour"),
        (1, "fc_user_id"),
        (3, "f_user-fc_hour"),
    ],
)
def test_features_are_found_by_slot_and_by_name_with_prefixes(features, item, name):
    assert item in features
    assert features[item].feature_name == features.get(item).feature_name == name


def test_a_prefix_of_the_whole_name_comes_before_those_of_its_parts():
    names = ("user-f_hour", "f_user-hour")
    features = FeatureList([], {}, {}, {name: Feature(name) for name in names})
    assert features["user-hour"].feature_name == "f_user-hour"


@pytest.mark.parametrize("item", ["user", "hour-user", 2])
def test_what_is_not_there_is_not_found(features, item):
    assert item not in features
    assert features.get(item, features[1]) is features[1]
    with pytest.raises(KeyError, match="expected a feature or its slot, got"):
        features[item]


def test_features_share_a_slot(features):
    names = [feature.feature_name for feature in features.get_with_slot(3)]
    assert names == ["f_user-fc_hour", "later"]
    assert features.get_with_slot(8) == []


def test_plain_names_have_no_prefixes(path):
    features = FeatureList.parse(path, use_old_name=False)
    assert list(features.features) == ["user_id", "user-hour", "later", "bare"]
    assert features["user_id"].depend_strip_prefix == ("user", "item")


def test_a_file_is_read_again_when_it_changes(path, features):
    assert FeatureList.parse(path) is FeatureList.parse(str(path)) is features
    path.write_text("feature_name=other\n")
    os.utime(path, ns=(1, 1))
    assert list(FeatureList.parse(path).features) == ["other"]


def test_the_last_of_two_lines_counts(path, caplog):
    path.write_text("feature_name=a slot=1\nfeature_name=a slot=2\n")
    assert FeatureList.parse(path)["a"].slot == 2
    assert "feature 'a' is there twice" in caplog.text
    assert "line 2" in caplog.text


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("feature_name=a slot=x", "expected slot as a whole number, got 'x'"),
        ("feature_name=a slot", "expected key=value, got 'slot'"),
        ("feature_name=a;=1", "expected key=value, got '=1'"),
        ("feature_name=a slot=1 slot=2", "expected slot once, got 'slot=2'"),
        ("slot=1", "expected feature_name=NAME, got 'slot=1'"),
        ("feed shared=1", "expected key=value, got 'feed'"),
        ("feed_id=1", "expected feed_name=NAME, got 'feed_id=1'"),
        ("cache_type=x", "expected cache_name, cache_key_class or cache_column, got"),
    ],
)
def test_a_line_that_cannot_be_read_is_told(path, line, text):
    path.write_text(f"# first\n{line}\n")
    with pytest.raises(InvalidArgumentError, match=rf"{text}.* \(.*feature_list.conf, line 2\)"):
        FeatureList.parse(path)


def test_a_path_that_is_missing_is_told(tmp_path):
    with pytest.raises(ValueError, match="expected the path of a file, got None"):
        FeatureList.parse()
    with pytest.raises(NotFoundError, match=r"expected a file, got none at '.*none.conf'"):
        FeatureList.parse(tmp_path / "none.conf")


def test_a_file_that_is_no_text_is_named(tmp_path):
    path = tmp_path / "feature_list.conf"
    path.write_bytes(b"f_user slot=1\n\xff")
    with pytest.raises(
        InvalidArgumentError, match=r"UTF-8 text, got .*feature_list\.conf: 'utf-8'"
    ):
        FeatureList.parse(path)
    with pytest.raises(InvalidArgumentError, match="Is a directory"):
        FeatureList.parse(tmp_path)


def test_names_and_slots_come_from_the_list_first(features):
    assert get_feature_name_and_slot(1, features) == ("fc_user_id", 1)
    assert get_feature_name_and_slot("user_id", features) == ("user_id", 1)
    assert get_feature_name_and_slot("bare", features) == ("bare", None)
    assert get_feature_name_and_slot(5, features) == ("fc_slot_5", 5)
    assert get_feature_name_and_slot("fc_slot_6", features) == ("fc_slot_6", 6)


def test_a_column_has_the_name_of_its_feature():
    slot = CollectingFactory(1).create_feature_slot(FeatureSlotConfig(slot_id=4))
    assert get_feature_name_and_slot(FeatureColumn(slot, "slot_4")) == ("slot_4", 4)
