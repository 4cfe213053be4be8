"""The figure of the demo: AUC and rows over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from examples.demo import Run

# Legible on white and on black: the background stays transparent.
INK = "#7a828c"
COLORS = ("#2f81f7", "#d4731e", "#b0569e", "#3f9a52")


def daily(values: Sequence[float], steps_per_day: int) -> list[float]:
    """Mean of each day, (days,)."""
    starts = range(0, len(values), steps_per_day)
    return [sum(values[i : i + steps_per_day]) / steps_per_day for i in starts]


def label_ends(axes: Axes, ends: list[tuple[float, str, str]], x: float) -> None:
    """Write (y, text, colour) at the right end of each line, moved apart where they are close."""
    low, high = axes.get_ylim()
    least = (high - low) * 0.075
    y_of_last = -float("inf")
    for y, text, color in sorted(ends):
        y_of_last = max(y, y_of_last + least)
        axes.annotate(
            text, (x, y_of_last), (6, 0), textcoords="offset points", color=color, va="center"
        )


def draw(runs: Sequence[Run], steps_per_day: int, path: Path) -> None:
    """Write the figure as a PNG; the first run is the one with a row per id."""
    figure = Figure(figsize=(7.6, 5.4), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    days = range(1, len(runs[0].scores) // steps_per_day + 1)

    best = daily(runs[0].best_scores, steps_per_day)
    top.plot(days, best, "--", color=INK)
    ends = [(best[-1], "best reachable", INK)]
    for i, run in enumerate(runs):
        scores, color = daily(run.scores, steps_per_day), COLORS[i % len(COLORS)]
        top.plot(days, scores, color=color, linewidth=2 if i == 0 else 1.5)
        ends.append((scores[-1], run.name, color))
    label_ends(top, ends, days[-1])
    top.set_title(
        "AUC of each day's clicks, scored before they were learned", loc="left", color=INK
    )

    rows = runs[0].num_rows[steps_per_day - 1 :: steps_per_day]
    expired = runs[0].num_expired[steps_per_day - 1 :: steps_per_day]
    made = [alive + gone for alive, gone in zip(rows, expired, strict=True)]
    bottom.plot(days, [n / 1000 for n in made], ":", color=INK)
    bottom.plot(days, [n / 1000 for n in rows], color=COLORS[0], linewidth=2)
    ends = [(made[-1] / 1000, "ever made", INK), (rows[-1] / 1000, "alive", COLORS[0])]
    bottom.set_ylim(bottom=0)
    label_ends(bottom, ends, days[-1])
    bottom.set_title("thousands of rows, with one per id", loc="left", color=INK)
    bottom.set_xlabel("day", color=INK)

    for axes in (top, bottom):
        dress(axes)
    part = path.with_name(f"{path.name}.part")
    figure.savefig(part, format="png", dpi=110, transparent=True)
    part.replace(path)


def dress(axes: Axes) -> None:
    """One quiet ink for all that is not data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color(INK)
    axes.tick_params(colors=INK)
    axes.grid(axis="y", color=INK, alpha=0.25, linewidth=0.6)
