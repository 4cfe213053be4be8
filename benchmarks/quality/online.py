"""What freshness is worth: online training, refreshed copies and batch training on one stream.

python benchmarks/quality/online.py --quick       one seed, two days, in some seconds
python benchmarks/quality/online.py               five seeds, three speeds of drift, in minutes
python benchmarks/quality/online.py --draw        the figure of the newest recorded run

Every model predicts every sample before any model has learned it. A full run is added to
benchmarks/results/quality_online.json with machine, commit and date, and draws
docs/images/freshness.png; docs/freshness.md explains both. A full run that was stopped goes on
with the worlds that are not done when it is started again at the same commit.
"""

import argparse
import contextlib
import dataclasses
import itertools
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

# Started as a file, Python looks for modules beside it; `benchmarks` itself lies two levels up.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks import history
from benchmarks.harness import ROOT, say
from benchmarks.quality.arms import ARMS, BEST, Outcome, World, gaps, run_world
from examples.clicks import SEED
from tools.commit import TreeError, clean_commit

NAME = "quality_online"
RESULTS = ROOT / "benchmarks" / "results" / f"{NAME}.json"
KEPT = ROOT / "build" / NAME  # outcomes of the commits that were run, for runs that were stopped
FIGURE = ROOT / "docs" / "images" / "freshness.png"
DRIFTS = {1.0: "drift of the demo", 0.2: "a fifth of the drift", 0.0: "no drift"}
SEEDS = (SEED, 1, 2, 3, 4)
SIZES = {"warm_days": 20, "days": 10, "batch": 256}
QUICK_DRIFTS, QUICK_SEEDS = (1.0, 0.0), (SEED,)
QUICK_SIZES = {"warm_days": 12, "days": 2, "batch": 1024}

Figure = dict[str, Any]


def worlds(*, is_quick: bool) -> list[World]:
    """Return the runs of the study, those of a seed one after the other."""
    if is_quick:
        pairs = itertools.product(QUICK_DRIFTS, QUICK_SEEDS)
        return [World(drift, seed, **QUICK_SIZES) for drift, seed in pairs]
    return [World(drift, seed, **SIZES) for seed, drift in itertools.product(SEEDS, DRIFTS)]


def study(runs: Sequence[World], processes: int, kept: Path | None = None) -> list[list[Outcome]]:
    """Run worlds in processes of their own, or in this one; return the outcomes of each.

    Args:
        runs: Worlds to run.
        processes: Number of worlds at the same time.
        kept: File of outcomes that are not run again, and to which new ones are added; None keeps
            none.
    """
    done = {} if kept is None else _read_kept(kept)
    left = [world for world in runs if world not in done]
    start = time.perf_counter()
    with contextlib.ExitStack() as stack:
        outcomes: Iterable[list[Outcome]] = map(run_world, left)
        if processes > 1:
            context = multiprocessing.get_context("spawn")
            pool = stack.enter_context(ProcessPoolExecutor(processes, context))
            outcomes = pool.map(run_world, left)
        for world, outcome in zip(left, outcomes, strict=True):
            done[world] = outcome
            if kept is not None:
                _keep(kept, world, outcome)
            seconds = time.perf_counter() - start
            say(f"{seconds:5.0f} s  {DRIFTS[world.drift]}, seed {world.seed}: done")
    return [done[world] for world in runs]


def _read_kept(path: Path) -> dict[World, list[Outcome]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    pairs = map(json.loads, lines)
    return {World(**world): [Outcome(**one) for one in outcome] for world, outcome in pairs}


def _keep(path: Path, world: World, outcome: list[Outcome]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pair = dataclasses.asdict(world), [dataclasses.asdict(one) for one in outcome]
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(pair) + "\n")


def figures(runs: Sequence[World], outcomes: Sequence[list[Outcome]]) -> list[Figure]:
    """Return a figure of each arm and drift, over all seeds."""
    result = []
    for drift in dict.fromkeys(world.drift for world in runs):
        pairs = [pair for pair in zip(runs, outcomes, strict=True) if pair[0].drift == drift]
        of_drift = [world for world, _ in pairs]
        for arm in (*ARMS, BEST):
            of_arm = [next(one for one in out if one.arm == arm) for _, out in pairs]
            arm_gaps = [gaps(out)[arm] for _, out in pairs]
            result.append(_figure(of_drift, of_arm, arm_gaps))
    return result


def _figure(runs: Sequence[World], outcomes: Sequence[Outcome], arm_gaps: list[float]) -> Figure:
    aucs, losses = ([getattr(one, key) for one in outcomes] for key in ("auc", "log_loss"))
    by_day = zip(*(one.auc_by_day for one in outcomes), strict=True)
    rows = statistics.mean(one.rows_per_refresh for one in outcomes)
    return {
        "name": NAME,
        "system": outcomes[0].arm,
        "drift": runs[0].drift,
        "median": round(statistics.median(aucs), 6),
        "mean": round(statistics.mean(aucs), 6),
        "spread": [round(min(aucs), 6), round(max(aucs), 6)],
        "unit": "AUC",
        "gap": round(statistics.mean(arm_gaps), 6),
        "gap_spread": [round(min(arm_gaps), 6), round(max(arm_gaps), 6)],
        "log_loss": round(statistics.mean(losses), 6),
        "log_loss_spread": [round(min(losses), 6), round(max(losses), 6)],
        "auc_by_day": [round(statistics.mean(day), 6) for day in by_day],
        "num_refreshes": round(statistics.mean(one.num_refreshes for one in outcomes)),
        "rows_per_refresh": round(rows, 1),
        "seeds": [world.seed for world in runs],
        "warm_days": runs[0].warm_days,
        "days": runs[0].days,
        "batch": runs[0].batch,
    }


def table(lines: Sequence[Figure]) -> str:
    """Return the arms as a table in Markdown: AUC, and what is lost against the online arm."""
    drifts = list(dict.fromkeys(line["drift"] for line in lines))
    heads = "".join(f" {DRIFTS[drift]}: AUC | against online |" for drift in drifts)
    rows = [f"| what predicts |{heads}", "|---|" + "---|---|" * len(drifts)]
    for arm in (*ARMS, BEST):
        of_arm = [line for line in lines if line["system"] == arm]
        cells = (f" {line['mean']:.4f} | {_gap(line)} |" for line in of_arm)
        rows.append(f"| {arm} |{''.join(cells)}")
    return "\n".join(rows)


def _gap(line: Figure) -> str:
    """Return the mean and the range of the difference to online, in units of 0.0001."""
    values = (line["gap"], *line["gap_spread"])
    mean, low, high = (round(1e4 * value, 1) + 0.0 for value in values)  # -0.0 becomes 0.0
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"


def loss_table(lines: Sequence[Figure]) -> str:
    """Return the mean log loss of the arms as a table in Markdown."""
    drifts = list(dict.fromkeys(line["drift"] for line in lines))
    heads = "".join(f" {DRIFTS[drift]} |" for drift in drifts)
    rows = [f"| log loss |{heads}", "|---|" + "---|" * len(drifts)]
    for arm in (*ARMS, BEST):
        cells = (f" {line['log_loss']:.4f} |" for line in lines if line["system"] == arm)
        rows.append(f"| {arm} |{''.join(cells)}")
    return "\n".join(rows)


def draw_figure(lines: Sequence[Figure], path: Path) -> None:
    """Draw the figure of a run."""
    from benchmarks.quality.online_figure import draw

    draw(lines, DRIFTS, path)
    say(f"Figure: {path}")


def check_can_draw() -> None:
    """End with a line that says what is missing, before the work and not after it."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        sys.exit("[online] expected matplotlib to be installed; pip install 'monolith-torch[demo]'")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a small study that is not recorded")
    parser.add_argument("--processes", type=int, default=2, help="runs at the same time (2)")
    parser.add_argument("--no-record", action="store_true", help="print only; any tree will do")
    parser.add_argument("--draw", action="store_true", help="draw the newest recorded run only")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw here, also of --quick")
    options = parser.parse_args(arguments)
    if options.processes < 1:
        parser.error(f"expected --processes of at least 1, got {options.processes}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the study, or draw the figure of the newest one."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    is_recorded = not (options.quick or options.no_record or options.draw)
    is_drawn = is_recorded or options.draw or options.figure is not None
    figure: Path = options.figure or FIGURE
    if is_drawn:
        check_can_draw()
    if options.draw:
        recorded = history.read_runs(RESULTS)
        if not recorded:
            say(f"[online] expected a recorded run in {RESULTS}, got none; run without --draw")
            return 2
        draw_figure(recorded[-1]["figures"], figure)
        return 0
    try:
        advice = "commit them, or run with --no-record"
        results = str(RESULTS.parent.relative_to(ROOT))
        commit = clean_commit("online", advice, ignore=results) if is_recorded else None
    except TreeError as error:
        say(str(error))
        return 2
    runs = worlds(is_quick=options.quick)
    kept = None if commit is None else KEPT / f"{commit}.jsonl"
    lines = figures(runs, study(runs, min(options.processes, len(runs)), kept))
    print(table(lines), loss_table(lines), sep="\n\n")
    if commit is not None:
        history.add_run(RESULTS, history.describe_run(lines, commit))
    if is_drawn:
        draw_figure(lines, figure)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("Stopped before the end; start it again to go on.", file=sys.stderr)
        sys.exit(130)
