"""What the records of a job's servers say about repeats and lost pushes."""

from collections import Counter


def lost_pushes(job):
    """Return the pushes that servers had done and lost: of each server, those that no start has.

    A start has the steps of the save with which it began, and those that it did itself.
    """
    num_lost = 0
    for server in range(job.num_servers):
        lives = job.lives(f"ps-{server}")
        has = set()
        for number, life in enumerate(lives):
            done = {(e["worker"], e["number"]) for e in life if e["event"] == "step"}
            if number:
                imports = [event["numbers"] for event in life if event["event"] == "import"]
                saved = imports[0] if imports else {}
                lost = {step for step in has if step[1] > saved.get(str(step[0]), 0)}
                num_lost += len(lost - done)
                has -= lost
            has |= done
    return num_lost


def trained(job):
    """Return how often each part of a share was trained, as server 0 says over all its starts.

    A step that comes again, because its answer was lost with a server, counts once.
    """
    steps, parts = set(), Counter()
    for life in job.lives("ps-0"):
        for event in life:
            step = event["event"] == "step" and (event["worker"], event["start"], event["number"])
            if step and step not in steps:
                steps.add(step)
                for share, position, _, num_samples in event["progress"]:
                    parts[share, str(position), num_samples] += 1
    return parts


def repeats(job):
    """Return the number of samples that were trained more than once."""
    return sum((count - 1) * part[2] for part, count in trained(job).items())
