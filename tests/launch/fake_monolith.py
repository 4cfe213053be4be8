"""In the place of `monolith` in tests of `monolith launch`: `ps` and `worker` without a task."""

import json
import signal
import sys
import time
from pathlib import Path


def say(**facts):
    print(json.dumps(facts), flush=True)


def folder_after(option):
    return Path(sys.argv[sys.argv.index(option) + 1])


def main():
    kind, task = sys.argv[1:3]
    print("arguments", *sys.argv[3:], file=sys.stderr, flush=True)
    if kind == "ps":
        received = []
        signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
        say(event="ready")
        say(event="status", rows=7)
        while not received and not (folder_after("--discovery") / "END").exists():
            time.sleep(0.01)
        say(event="ended")
        return 0
    if task == "failing.py":
        sys.stderr.write("error: expected better days\n")
        return 1
    say(step=2, samples_per_second=10.0, loss=0.5, metrics={}, staleness=0)
    say(ended="steps", num_steps=2)
    (folder_after("--servers") / "END").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
