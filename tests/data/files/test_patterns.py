from datetime import date, timedelta

import pytest

from monolith.data.files.patterns import expand_template, gen_patterns, matching_patterns
from monolith.errors import NotFoundError


def test_the_template_of_the_reference():
    template = "data_{DATE(20201120, 20201210)}/hour_{INT(0, 5)}/part_{INT(0, 3)}"
    found = expand_template(template)
    assert len(found) == 21 * 6 * 4
    assert found[:2] == ["data_20201120/hour_0/part_0", "data_20201120/hour_0/part_1"]
    assert found[-1] == "data_20201210/hour_5/part_3"


def test_ten_digits_are_hours():
    assert expand_template("{DATE(2020123122, 2021010101)}") == [
        "2020123122", "2020123123", "2021010100", "2021010101",
    ]  # fmt: skip


def test_a_template_without_ranges_is_a_pattern():
    assert expand_template("a / b") == ["a/b"]


@pytest.mark.parametrize(
    "text",
    [
        "{WEEK(1,2)}",
        "{INT(a,2)}",
        "{DATE(2020,2021)}",
        "{DATE(20200101,2020010100)}",
        "{DATE(20201301,20201302)}",
    ],
)
def test_ranges_of_something_else_are_refused(text):
    with pytest.raises(ValueError, match="expected INT of integers, or DATE of 8 or 10 digits"):
        expand_template(text)


@pytest.mark.parametrize("text", ["{INT(2,1)}", "{DATE(20200102,20200101)}"])
def test_ranges_without_values_are_refused(text):
    with pytest.raises(ValueError, match="expected an end that is not before, got"):
        expand_template(text)


def test_patterns_without_files_are_warned_of(tmp_path):
    (tmp_path / "a").write_text("")
    patterns = [f"{tmp_path}/a*", f"{tmp_path}/b*"]
    with pytest.warns(UserWarning, match=r"\[matching_patterns\] no file matches '.*b\*'"):
        assert matching_patterns(patterns) == patterns[:1]


@pytest.mark.filterwarnings("ignore:.*no file matches")
def test_no_files_at_all_are_refused(tmp_path):
    with pytest.raises(NotFoundError, match="no match files"):
        matching_patterns([f"{tmp_path}/b*"])


def test_the_days_of_the_reference():
    found = gen_patterns("path", "20220901", end_date="20220920")
    assert len(found) == 19
    assert (found[0], found[-1]) == ("path/20220901/*", "path/20220919/*")


def test_hours_are_half_open_too():
    found = gen_patterns("path", "20220901", 22, "20220902", 1, is_hourly=True, wildcard="_*")
    assert found == ["path/20220901/22_*", "path/20220901/23_*", "path/20220902/00_*"]


def test_an_end_before_the_start_is_no_pattern():
    assert gen_patterns("path", "20220902", end_date="20220901") == []


def test_without_an_end_it_is_today():
    before = date.today()
    found = gen_patterns("path", f"{before - timedelta(days=2):%Y%m%d}")
    assert len(found) - 2 in range((date.today() - before).days + 1)
