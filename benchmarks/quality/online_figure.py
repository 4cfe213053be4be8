"""The figure of docs/freshness.md: AUC by day, and what a late refresh loses."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.quality.arms import BATCH_TRAINED, BEST, NEVER, ONLINE, REFRESHED
from examples.demo_figure import COLORS, INK, dress, label_ends

Line = Mapping[str, Any]

BY_DAY = (ONLINE, "every day", "batch training, daily", NEVER)  # the arms of the upper panel
UNIT = 1e-4  # of the lower panel's axis
TICKS = (0, -1, -3, -10, -30, -100, -300)
_SHORT = {ONLINE: "online", **{arm: arm.removeprefix("every ") for arm in REFRESHED}}
_SHORT |= {arm: arm.removeprefix("batch training, ") for arm in BATCH_TRAINED}


def draw(lines: Sequence[Line], drifts: Mapping[float, str], path: Path) -> None:
    """Write the figure of a run as a PNG."""
    figure = Figure(figsize=(8.2, 7.2), layout="constrained")
    top, bottom = figure.subplots(2, 1, height_ratios=(3, 4))
    _draw_days(top, [line for line in lines if line["drift"] == lines[0]["drift"]])
    _draw_intervals(bottom, lines, drifts)
    for axes in (top, bottom):
        dress(axes)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    figure.savefig(part, format="png", dpi=110, transparent=True)
    part.replace(path)


def _draw_days(axes: Axes, lines: Sequence[Line]) -> None:
    """Draw AUC over the days of some arms, and the best reachable line."""
    by_arm = {line["system"]: line for line in lines}
    first = lines[0]["warm_days"] + 1
    days = range(first, first + lines[0]["days"])
    best = by_arm[BEST]["auc_by_day"]
    axes.plot(days, best, "--", color=INK)
    ends = [(best[-1], BEST, INK)]
    for arm, color in zip(BY_DAY, COLORS, strict=True):
        scores = by_arm[arm]["auc_by_day"]
        axes.plot(days, scores, color=color)
        ends.append((scores[-1], arm, color))
    label_ends(axes, ends, days[-1])
    axes.set_title("AUC of each day with the drift of the demo", loc="left", color=INK)
    axes.set_xticks(days)
    axes.set_xlabel("day", color=INK)


def _draw_intervals(axes: Axes, lines: Sequence[Line], drifts: Mapping[float, str]) -> None:
    """Draw what each arm loses against the online arm, with the range of the seeds."""
    refreshed, trained = [ONLINE, *REFRESHED], [*BATCH_TRAINED]
    places = {arm: float(place) for place, arm in enumerate(refreshed)}
    places |= {arm: len(refreshed) + 0.5 + number for number, arm in enumerate(trained)}
    axes.axhline(0, color=INK, linewidth=0.8)
    for (drift, name), color in zip(drifts.items(), COLORS, strict=False):
        by_arm = {line["system"]: line for line in lines if line["drift"] == drift}
        if not by_arm:
            continue
        for arms, label in ((refreshed, name), (trained, None)):
            gaps = [by_arm[arm]["gap"] / UNIT for arm in arms]
            low, high = zip(*(by_arm[arm]["gap_spread"] for arm in arms), strict=True)
            errors = [
                [gap - value / UNIT for gap, value in zip(gaps, low, strict=True)],
                [value / UNIT - gap for gap, value in zip(gaps, high, strict=True)],
            ]
            style = "o-" if label else "s"
            axes.errorbar(
                [places[arm] for arm in arms], gaps, errors, fmt=style, color=color, label=label,
                markersize=4, capsize=3,
            )  # fmt: skip
    axes.set_yscale("symlog", linthresh=1)
    axes.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.minorticks_off()
    axes.set_xticks(list(places.values()), [_SHORT[arm] for arm in places])
    axes.axvline(len(refreshed) - 0.25, color=INK, linewidth=0.6, linestyle=":")
    axes.set_title(
        "AUC less that of the online model, in units of 0.0001; logarithmic below -1",
        loc="left",
        color=INK,
    )
    below: dict[str, Any] = {
        "transform": axes.get_xaxis_transform(),
        "color": INK,
        "ha": "center",
        "va": "top",
    }
    axes.text((len(refreshed) - 1) / 2, -0.1, "refresh of the copy that predicts", **below)
    axes.text(len(refreshed) + 1, -0.1, "batch training", **below)
    axes.legend(frameon=False, labelcolor=INK, loc="lower left")
