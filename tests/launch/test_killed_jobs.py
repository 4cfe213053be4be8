"""`monolith launch` of jobs of which one role is killed before, while and after a save."""

import itertools
import os
import random
from collections import Counter

import pytest

from tests.launch.job_reports import lost_pushes, repeats, trained
from tests.train.roles.role_records import MOMENTS, strikes_of

pytestmark = [pytest.mark.dist, pytest.mark.thorough]

TARGETS = ("ps-0", "ps-1", "worker-0", "worker-1")
MATRIX = list(itertools.product(TARGETS, MOMENTS))
SEED = int(os.environ.get("KILL_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)


def run_with_kills(job, *strikes, num_samples=800):
    """Run a job whose chief kills roles; return what it reports."""
    job.strike(*strikes)
    ended = job.launch()
    assert strikes_of(job.folder)[1] == len(strikes)
    restarts = {role["name"]: role["restarts"] for role in ended["roles"] if role["restarts"]}
    assert restarts == Counter(target for target, _ in strikes)
    report = ended["result"]["job"]
    print(*strikes, report)
    assert sum(part[2] for part in trained(job)) == num_samples
    return report


def assert_counted(job, report):
    """Compare a report with the records."""
    assert report["lost_pushes"] == lost_pushes(job)
    assert report["repeats"] == repeats(job)


@pytest.mark.req("TS-CPUDIST-T6")
@pytest.mark.parametrize("number", range(3))
def test_a_job_ends_and_counts_what_was_lost_when_any_role_is_killed(nursery, samples, number):
    print("KILL_SEED", SEED)
    target, moment = random.Random(SEED).sample(MATRIX, 3)[number]
    with nursery.job(samples(800), **{"--save-every": 30}) as job:
        assert_counted(job, run_with_kills(job, (target, moment)))


@pytest.mark.slow
@pytest.mark.req("TS-CPUDIST-T6")
@pytest.mark.parametrize(("target", "moment"), MATRIX)
def test_a_job_ends_and_counts_what_was_lost_in_the_whole_matrix(nursery, samples, target, moment):
    with nursery.job(samples(800), **{"--save-every": 30}) as job:
        assert_counted(job, run_with_kills(job, (target, moment)))
