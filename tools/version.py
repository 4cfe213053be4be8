"""Checks CHANGELOG.md: its headings, and that its newest release is the version of the package."""

import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]


def problems(changelog: str, package: str) -> list[str]:
    """Return what is wrong with the headings of a changelog, given the text of `__init__.py`."""
    headings = re.findall(r"^## \[(.+?)\]", changelog, re.M)
    undated = re.findall(r"^## \[(?!Unreleased)(.+?)\](?! - \d{4}-\d\d-\d\d$)", changelog, re.M)
    versions = re.findall(r'^__version__ = "(.+)"$', package, re.M)
    if len(versions) != 1:
        return [f'expected one line __version__ = "..." in the package, got {len(versions)}']
    if headings[:1] != ["Unreleased"]:
        return [f"expected the first heading to be [Unreleased], got {headings[:1]}"]
    if headings[1:] and headings[1] != versions[0]:
        return [f"expected the newest release to be {versions[0]}, got {headings[1]}"]
    if undated:
        return [f"expected '## [{undated[0]}] - YYYY-MM-DD', got no such date"]
    releases = re.split(r"^## \[(.+?)\].*$", changelog, flags=re.M)
    return [
        problem
        for name, text in zip(releases[1::2], releases[2::2], strict=True)
        for problem in release_problems(name, text)
    ]


def release_problems(name: str, text: str) -> list[str]:
    """Return what is wrong with a release; merges can bring old entries back, or double them."""
    lines = [line for line in text.splitlines() if line.startswith(("### ", "- "))]
    twice = [line for line, number in Counter(lines).items() if number > 1]
    problems = [f"expected {line[:60]!r} once in [{name}]" for line in twice]
    if lines and not lines[0].startswith("### "):
        problems.append(f"expected a '### ' heading first in [{name}], got {lines[0][:60]!r}")
    return problems


if __name__ == "__main__":
    messages = problems(
        (ROOT / "CHANGELOG.md").read_text(), (ROOT / "src/monolith/__init__.py").read_text()
    )
    text = "\n".join(f"[version] {message}" for message in messages)
    print(text or "version and changelog agree")
    sys.exit(bool(messages))
