"""A joiner that is killed at any moment and resumed gives each sample once, in the same order."""

import json
import math
import os
import random
import signal

import numpy as np
import pytest

from monolith.data.stream.join.key_draws import KeyDraws
from tests.data.stream.join.killed_joiner import (
    LATENESS,
    SETTINGS,
    WINDOW,
    run,
    write_events,
)
from tests.data.stream.join.naive_join import NaiveJoin
from tests.forker import started

NUM_KILLS = 3


def naive_lines(files):
    """The samples that leave a naive join, which reads the files in the order of time."""
    naive = NaiveJoin(WINDOW, LATENESS, kinds=("click", "open", "buy"))
    inputs = [list(files["shown"]), list(files["acted"])]
    is_over = [False, False]
    samples = []
    while not all(is_over):
        source = min((naive.newest[at], at) for at in (0, 1) if not is_over[at])[1]
        if not inputs[source]:
            is_over[source] = True
            samples += naive.leave_out(source)
        for row in inputs[source].pop(0) if inputs[source] else ():
            samples += naive.add(source, row, row.get("kind"))
    samples += naive.finish()
    return "".join(line_of(row, kinds) for row, kinds in samples), naive.counts


def line_of(row, kinds):
    drawn = KeyDraws(0, 0, np.array([row["key"]])).uniform(1, SETTINGS.seed)[0]
    if not kinds and drawn < 1 - SETTINGS.negative_rate:
        return ""
    click, buy = float(bool(kinds & {"click", "open"})), float("buy" in kinds)
    offset = math.log(SETTINGS.negative_rate)
    return f"{row['key']} {row['item']} {click:g} {buy:g} {offset:.6f}\n"


def kill_often(program, folder, has_folder, num_kills, draw):
    """Run to the end in children; kill the first ones after some batches."""
    for number in range(num_kills + 1):
        last = None if number == num_kills else draw.randint(2, 9)
        program.stdin.write(json.dumps([str(folder), has_folder, last]) + "\n")
        child = int(program.stdout.readline().split()[1])
        for line in iter(program.stdout.readline, "ended\n"):
            if line == f"batch {last}\n":
                os.kill(child, signal.SIGKILL)


@pytest.fixture(scope="module")
def program():
    with started("tests.data.stream.join.killed_joiner") as process:
        yield process


@pytest.mark.dist
@pytest.mark.req("RT-T3")
@pytest.mark.parametrize("has_folder", [True, False])
def test_samples_after_kills_are_those_of_an_undisturbed_run(program, tmp_path, has_folder):
    files = write_events(tmp_path / "killed")
    write_events(tmp_path / "whole")
    run(tmp_path / "whole", has_folder=has_folder, say=lambda text: None)
    kill_often(program, tmp_path / "killed", has_folder, NUM_KILLS, random.Random(has_folder))
    expected, counts = naive_lines(files)
    assert all(counts[f"{what}_actions"] > 20 for what in ("late", "unmatched", "duplicate"))
    assert counts["late_impressions"] > 20
    assert counts["duplicate_impressions"] > 20
    assert (tmp_path / "whole" / "samples.txt").read_text() == expected
    assert (tmp_path / "killed" / "samples.txt").read_text() == expected


@pytest.mark.dist
@pytest.mark.slow
def test_twenty_kills_change_nothing(program, tmp_path):
    files = write_events(tmp_path, num_files=60)
    kill_often(program, tmp_path, True, 20, random.Random(7))
    assert (tmp_path / "samples.txt").read_text() == naive_lines(files)[0]
