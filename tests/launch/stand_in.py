"""A small process in the place of a server or a worker, for tests of the launcher.

It reports, dies as often as it is told to, waits for SIGTERM or for the file STOP of its folder,
and writes its signals to the file `events` of the folder.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

PAUSE_SECONDS = 0.01


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--deaths", type=int, default=0, help="Starts that die after a report.")
    parser.add_argument("--code", type=int, default=3, help="Exit status of those.")
    parser.add_argument("--is-mute", action="store_true", help="Report nothing.")
    parser.add_argument("--is-stubborn", action="store_true", help="Ignore SIGTERM.")
    parser.add_argument("--stop", default="STOP", help="Name of the file that ends the process.")
    parser.add_argument("--say", default="", help="Text for stderr.")
    parser.add_argument("--with-child", action="store_true", help="Start a process.")
    return parser.parse_args()


def report(**facts):
    print(json.dumps(facts), flush=True)


def main():
    how = options()
    received = []
    signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    if how.with_child:
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
        (how.folder / "child").write_text(str(child.pid))
    if not how.is_mute and how.name.startswith("ps"):
        report(event="ready", index=0)
        report(event="status", index=0, rows=7, bytes=70, update_calls=1)
    elif not how.is_mute:
        report(step=20, samples_per_second=900.0, loss=0.5, metrics={"auc": 0.75}, staleness=1)
    if how.say:
        print(how.say, file=sys.stderr, flush=True)
    starts = how.folder / f"{how.name}.starts"
    num_starts = len(starts.read_text()) if starts.exists() else 0
    starts.write_text("x" * (num_starts + 1))
    if num_starts < how.deaths:
        sys.exit(how.code)
    while (how.is_stubborn or not received) and not (how.folder / how.stop).exists():
        time.sleep(PAUSE_SECONDS)
    with open(how.folder / "events", "a") as events:
        events.write(f"{how.name} {'SIGTERM' if received else 'ended'}\n")
    report(ended="steps", name=how.name)
    sys.exit(143 if received and not how.name.startswith("ps") else 0)


if __name__ == "__main__":
    main()
