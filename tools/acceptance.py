"""Lists the state of every acceptance id in docs/parity.md, and counts the states.

python tools/acceptance.py           what the last test run left in build/acceptance.json
python tools/acceptance.py --write   also write these states into the page

The last table of the page holds all ids, so the list of ids is kept there and nowhere else. An id
that the run has no outcome for keeps the state that the page gives it.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # started as a file, Python looks for modules beside it

from tools.page_table import BEGIN, END, rewrite  # noqa: E402

PAGE = ROOT / "docs" / "parity.md"
RUN, NOTES = ROOT / "build" / "acceptance.json", ROOT / "build" / "acceptance_notes.json"
STATES = ("passed", "passed in part", "failed", "skipped", "not built")
HEADER = "| component | ids | state |\n|---|---|---|\n"
_RANGE = re.compile(r"\b((?:G|GP|RT|SV|(?:MN|NT|TS)-[A-Z0-9]+)-T)(\d+)(?:\.\.T(\d+))?")


@dataclass(frozen=True)
class Entry:
    """The component of an id, and its state."""

    component: str
    state: str


def listed_ids(text: str) -> set[str]:
    """Return the ids of a text; `NT-GENOPS-T1..T3` stands for three of them."""
    return {
        f"{prefix}{number}"
        for prefix, first, last in _RANGE.findall(text)
        for number in range(int(first), int(last or first) + 1)
    }


def parse(table: str) -> dict[str, Entry]:
    """Read the table of all ids.

    Raises:
        ValueError: a row has another state, or an id stands in two rows.
    """
    entries: dict[str, Entry] = {}
    for row in table.splitlines():
        cells = [cell.strip() for cell in row.split("|")[1:-1]]
        if len(cells) != 3 or not (ids := listed_ids(cells[1])):
            continue
        if cells[2] not in STATES:
            raise ValueError(f"[acceptance] expected one of {STATES}, got {cells[2]!r} ({row})")
        if twice := sorted(ids & entries.keys()):
            raise ValueError(f"[acceptance] expected every id once, got {twice} again ({row})")
        entries |= dict.fromkeys(ids, Entry(cells[0], cells[2]))
    return entries


def render(entries: Mapping[str, Entry]) -> str:
    """Write the table of all ids: a row for each component, group of ids and state."""
    rows: dict[tuple[str, str, int], list[int]] = {}
    for req_id, entry in entries.items():
        prefix, number = req_id.rsplit("-T", 1)
        key = (entry.component, prefix, STATES.index(entry.state))
        rows.setdefault(key, []).append(int(number))
    lines = (
        f"| {component} | {', '.join(_ranges(prefix, numbers))} | {STATES[state]} |\n"
        for (component, prefix, state), numbers in sorted(rows.items())
    )
    return HEADER + "".join(lines)


def update(entries: Mapping[str, Entry], outcomes: Mapping[str, str]) -> dict[str, Entry]:
    """Return the entries with the states of a run.

    Raises:
        ValueError: the run has an id that the page does not list.
    """
    if unknown := sorted(outcomes.keys() - entries.keys()):
        raise ValueError(f"[acceptance] expected ids of docs/parity.md, got {unknown}; add them")
    return {
        req_id: replace(entry, state=outcomes.get(req_id, entry.state))
        for req_id, entry in entries.items()
    }


def summary(entries: Iterable[Entry]) -> str:
    """Count the states in one line."""
    counts = Counter(entry.state for entry in entries)
    words = (state if state != "passed in part" else "in part" for state in STATES)
    return ", ".join(
        f"{counts[state]} {word}"
        for state, word in zip(STATES, words, strict=True)
        if counts[state] or state != "failed"
    )


def read_page() -> dict[str, Entry]:
    """Read the table of all ids from docs/parity.md."""
    return parse(PAGE.read_text().split(BEGIN)[1].split(END)[0])


def main() -> int:
    """Print the summary and what differs from the page, or write the page; 1 if that is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the states into the page")
    options = parser.parse_args()
    try:
        listed = read_page()
        states = update(listed, _read(RUN))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    if options.write:
        rewrite(PAGE, render(states))
    others = sorted(req_id for req_id in states if states[req_id] != listed[req_id])
    for req_id in others if not options.write else ():
        print(f"{req_id}: {states[req_id].state}; docs/parity.md: {listed[req_id].state}")
    for req_id, note in sorted(_read(NOTES).items()):
        print(f"{req_id}: {states[req_id].state}, {note}")
    if others and not options.write:
        print("to update the page: python tools/acceptance.py --write")
    print(f"acceptance ids: {summary(states.values())}")
    return 0


def _read(path: Path) -> dict[str, str]:
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _ranges(prefix: str, numbers: Iterable[int]) -> list[str]:
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return [f"{prefix}-T{a}" if a == b else f"{prefix}-T{a}..T{b}" for a, b in runs]


if __name__ == "__main__":
    sys.exit(main())
