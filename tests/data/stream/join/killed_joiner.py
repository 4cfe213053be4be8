"""A program whose children join files of events and commit their samples, until they are killed.

samples.txt    a line for each sample, in the order in which the samples left
commit.json    the bytes of samples.txt that count, and the state of the pipeline there
"""

import functools
import json
import random
import signal
from pathlib import Path

from monolith import data
from monolith.data.stream.join import JoinSettings, join_events
from tests.forker import fork_for_lines

BATCHES_PER_COMMIT = 3
WINDOW, LATENESS = 40, 15
SETTINGS = JoinSettings(
    "key", WINDOW, {"click": ["click", "open"], "buy": ["buy"]}, lateness=LATENESS,
    negative_rate=0.5, seed=3,
)  # fmt: skip
KINDS = ("click", "open", "buy", "scroll")


def write_events(folder, num_files=12, per_file=120, seed=0):
    """Write files of impressions and of actions: late, doubled and in disorder; return them all."""
    draw = random.Random(seed)
    inputs = {"shown": [], "acted": []}
    for number in range(num_files * per_file):
        start = number // 3
        time = start - draw.choice([0, 0, 0, draw.randint(0, 20), 80])
        copies = draw.choice([1, 1, 1, 2])
        inputs["shown"] += [{"key": number, "time": time, "item": number % 17}] * copies
        for _ in range(draw.choice([0, 0, 1, 3])):
            when = time + draw.randint(-3, WINDOW + 8)
            inputs["acted"].append({"key": number, "time": when, "kind": draw.choice(KINDS)})
    inputs["acted"].sort(key=lambda row: row["time"] + draw.choice([0, 0, 30, 70]))
    files = {}
    for name, rows in inputs.items():
        (folder / name).mkdir(parents=True)
        size = -(-len(rows) // num_files)
        files[name] = [rows[at : at + size] for at in range(0, len(rows), size)]
        for number, part in enumerate(files[name]):
            path = folder / name / f"{number:03d}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in part))
    return files


def pipeline(folder, *, has_folder):
    shown = data.jsonl(folder / "shown", columns=data.Columns(["key", "item"], time="time"))
    acted = data.jsonl(folder / "acted", columns=data.Columns(["key", "kind"], time="time"))
    return join_events(
        [shown, acted], SETTINGS, folder=folder / "state" if has_folder else None,
        save_every=300, num_kept=8, memory_bytes=4_000,
    ).batch(16)  # fmt: skip


def lines_of(batch):
    keys, items = (batch.features[name].to_lists() for name in ("key", "item"))
    columns = [batch.labels["click"], batch.labels["buy"], batch.dense["log_odds_offset"]]
    rows = zip(keys, items, *(column.tolist() for column in columns), strict=True)
    return "".join(
        f"{key[0]} {item[0]} {click:g} {buy:g} {offset:.6f}\n"
        for key, item, click, buy, offset in rows
    )


def run(folder, *, has_folder, say, last=None):
    """Join from the last commit to the end; or some batches further than `last`, then wait."""
    source, commit = pipeline(folder, has_folder=has_folder), folder / "commit.json"
    saved = {"bytes": 0, "state": None}
    if commit.exists():
        saved = json.loads(commit.read_text())
    state = saved["state"]
    batches = iter(source) if state is None else source.resume(state)
    with (folder / "samples.txt").open("ab") as file, batches:
        file.truncate(saved["bytes"])
        for number, batch in enumerate(batches):
            file.write(lines_of(batch).encode())
            file.flush()
            if number % BATCHES_PER_COMMIT == 0:
                size = file.seek(0, 2)
                partial = commit.with_suffix(".partial")
                partial.write_text(json.dumps({"bytes": size, "state": batches.state_dict()}))
                partial.replace(commit)
            say(f"batch {number}")
            if last is not None and number == last + BATCHES_PER_COMMIT:
                signal.pause()  # the kill comes somewhere in the last batches


def work(line):
    folder, has_folder, last = json.loads(line)
    say = functools.partial(print, flush=True)
    run(Path(folder), has_folder=has_folder, say=say, last=last)


if __name__ == "__main__":
    fork_for_lines(work)
