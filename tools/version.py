"""Checks that the newest release in CHANGELOG.md is the version of the package."""

import re
import sys
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
    return []


if __name__ == "__main__":
    messages = problems(
        (ROOT / "CHANGELOG.md").read_text(), (ROOT / "src/monolith/__init__.py").read_text()
    )
    text = "\n".join(f"[version] {message}" for message in messages)
    print(text or "version and changelog agree")
    sys.exit(bool(messages))
