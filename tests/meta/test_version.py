import pytest

from tools.version import problems

PACKAGE = '__version__ = "1.2.0"\n'


@pytest.mark.parametrize(
    "changelog", ["## [Unreleased]\n", "## [Unreleased]\n## [1.2.0] - 2026-11-18\n"]
)
def test_a_changelog_that_agrees_has_no_problem(changelog):
    assert problems(changelog, PACKAGE) == []


@pytest.mark.parametrize(
    ("changelog", "package", "problem"),
    [
        ("## [1.2.0]\n", PACKAGE, "expected the first heading to be [Unreleased], got ['1.2.0']"),
        ("", PACKAGE, "expected the first heading to be [Unreleased], got []"),
        (
            "## [Unreleased]\n## [1.1.0]\n## [1.0.0]\n",
            PACKAGE,
            "expected the newest release to be 1.2.0, got 1.1.0",
        ),
        (
            "## [Unreleased]\n## [1.2.0] - day\n",
            PACKAGE,
            "expected '## [1.2.0] - YYYY-MM-DD', got no such date",
        ),
        ("## [Unreleased]\n", "", 'expected one line __version__ = "..." in the package, got 0'),
    ],
)
def test_a_difference_is_told(changelog, package, problem):
    assert problems(changelog, package) == [problem]


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ("### A\n- x\n\n### A\n- y\n", "expected '### A' once in [Unreleased]"),
        ("### A\n- x\n### B\n- x\n", "expected '- x' once in [Unreleased]"),
        ("- x\n### A\n", "expected a '### ' heading first in [Unreleased], got '- x'"),
    ],
)
def test_what_a_merge_doubles_is_told(entries, problem):
    assert problems(f"## [Unreleased]\n\n{entries}", PACKAGE) == [problem]


def test_two_releases_may_have_the_same_headings():
    releases = "## [Unreleased]\n### A\n- x\n## [1.2.0] - 2026-11-18\n### A\n- x\n"
    assert problems(releases, PACKAGE) == []
