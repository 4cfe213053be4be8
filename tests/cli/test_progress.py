import contextlib
import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from monolith.cli.progress import TrainProgress, words_of
from monolith.train import Figures
from monolith.train.figures import StreamFigures, WindowScores

ALL = Figures(
    50, 51_200, samples_per_second=12_345.6, loss=0.43218, metrics={"auc": 0.71234},
    num_rows=1_234_567, num_refused=12, num_evicted=3, memory_bytes=3 << 29, staleness_bound=2,
)  # fmt: skip


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Shown:
    """A progress of 100 steps, what it printed, and its clock."""

    def __init__(self, total=100, *, is_terminal=False, environ=None, **options):
        self.clock, self.file = Clock(), io.StringIO()
        console = Console(
            file=self.file,
            force_terminal=is_terminal,
            force_interactive=is_terminal,
            width=80,
            color_system="truecolor" if is_terminal else None,
            no_color=None,
            _environ=environ or {},
        )
        self.progress = TrainProgress(console, total, clock=self.clock, **options)

    def update(self, seconds, figures):
        self.clock.now = seconds
        self.progress.update(figures)

    @property
    def text(self):
        return self.file.getvalue()


def test_a_worker_that_others_have_overtaken_says_by_how_much():
    assert words_of(replace(ALL, staleness=3))[-1] == "3 steps stale"
    assert words_of(replace(ALL, staleness=2))[-1] == "at most 2 steps stale"


def test_lines_come_at_an_interval_and_at_the_end():
    shown = Shown(interval_seconds=10)
    with shown.progress:
        for second in range(1, 26):
            shown.update(second, Figures(second, second, 0.5))
    assert [line.split(" (")[0] for line in shown.text.splitlines()] == [
        "step 10/100",
        "step 20/100",
        "step 25/100",
    ]


def test_what_was_shown_last_is_not_shown_again_at_the_end():
    shown = Shown(interval_seconds=10)
    with shown.progress:
        shown.update(10, Figures(10, 10, 0.5))
    assert len(shown.text.splitlines()) == 1


def test_a_line_has_every_figure():
    shown = Shown()
    with shown.progress:
        shown.update(0, Figures(0, 0, 0.5))
        shown.update(100, ALL)
    assert shown.text == (
        "step 50/100 (50 %), 12,346 samples/s, loss 0.4322, AUC 0.7123, 1,234,567 rows, "
        "12 keys refused, 3 rows evicted, 1.50 GiB, at most 2 steps stale, 0:01:40 left\n"
    )


def test_what_did_not_happen_is_left_out():
    shown = Shown(None)
    with shown.progress:
        shown.update(0, Figures(7, 7, 0.5))
    assert shown.text == "step 7, 0 samples/s, loss 0.5000, 0 rows\n"


def test_the_time_left_counts_the_steps_of_this_run_only():
    shown = Shown(1000)
    with shown.progress:
        shown.update(0, Figures(900, 0, 0.5))
        shown.update(3600, Figures(950, 50, 0.5))
    assert "1:00:00 left" in shown.text


def test_no_figures_print_nothing():
    shown = Shown()
    with shown.progress:
        pass
    assert shown.text == ""


def test_the_last_figures_are_shown_after_an_error():
    shown = Shown()

    with contextlib.suppress(RuntimeError), shown.progress:
        shown.update(1, Figures(1, 1, 0.5))
        raise RuntimeError("stopped")
    assert "step 1/100" in shown.text


def test_json_lines_go_to_stdout(capsys):
    shown = Shown(is_json=True, is_terminal=True, interval_seconds=10)
    with shown.progress:
        shown.update(0, Figures(0, 0, 0.5))
        shown.update(10, Figures(25, 100, loss=float("nan")))
        shown.update(11, ALL)
    first, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["step"], first["loss"], first["seconds_left"]) == (25, None, pytest.approx(30))
    assert (last["metrics"]["auc"], last["num_rows"], last["total_steps"]) == (
        0.71234,
        1_234_567,
        100,
    )
    assert shown.text == ""


def test_a_terminal_shows_a_bar_with_every_figure():
    shown = Shown(is_terminal=True, environ={"NO_COLOR": "1"})
    with shown.progress:
        shown.update(0, Figures(0, 0, 0.5))
        shown.update(100, ALL)
    words = ("step 50/100", "━━━", "0:01:40 left", *words_of(ALL)[:4], "1.50 GiB", "2 steps stale")
    assert [word for word in words if word not in " ".join(shown.text.split())] == []


@pytest.mark.parametrize(("environ", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_colour_is_left_out_where_nobody_wants_it(environ, is_coloured):
    shown = Shown(is_terminal=True, environ=environ)
    with shown.progress:
        shown.update(100, ALL)
    assert any(code in shown.text for code in ("\x1b[36m", "\x1b[38;")) == is_coloured


def test_a_bar_is_not_drawn_more_often_than_it_can_be_read():
    shown = Shown(is_terminal=True)
    with shown.progress:
        for step in range(1000):
            shown.update(step / 1000, Figures(step, step, 0.5))
    assert shown.text.count("step ") <= 13


def test_a_bar_without_an_end_has_no_time_left():
    shown = Shown(None, is_terminal=True)
    with shown.progress:
        shown.update(0, Figures(1, 1, 0.5))
        shown.update(100, ALL)
    assert "step 50 " in shown.text
    assert "left" not in shown.text


@pytest.mark.parametrize("is_terminal", [False, True])
def test_without_an_end_in_steps_the_share_of_the_source_tells_the_time_left(is_terminal):
    shown = Shown(None, is_terminal=is_terminal)
    with shown.progress:
        shown.update(0, Figures(1, 1, 0.5, share=0.1))
        shown.update(100, Figures(9, 9, 0.5, share=0.6))
    assert "0:01:20 left" in shown.text  # 100 s for half of it
    assert is_terminal or "step 9 (60 %), " in shown.text


def test_a_source_that_is_read_tells_no_time_left():
    shown = Shown(None)
    with shown.progress:
        shown.update(0, Figures(1, 1, 0.5, share=0.1))
        shown.update(100, Figures(9, 9, 0.5, share=1.0))
    assert "(100 %)" in shown.text
    assert "left" not in shown.text


def test_the_last_figures_before_a_wait_are_shown_when_it_is_time():
    shown = Shown(interval_seconds=2)
    with shown.progress:
        shown.update(1, Figures(1, 8, 0.5))
        shown.progress.refresh()
        assert shown.text == ""
        shown.clock.now = 3
        shown.progress.refresh()
        assert shown.text.startswith("step 1/100")
        shown.clock.now = 9
        shown.progress.refresh()
    assert len(shown.text.splitlines()) == 1


@pytest.mark.parametrize(
    ("windows", "words"),
    [
        ({}, []),
        ({"time": WindowScores("time", 7, 31, {"auc": 0.5})}, ["last window of 31: AUC 0.5000"]),
        (
            {
                "time": WindowScores("time", 7, 31),
                "samples": WindowScores("samples", 2, 1000, {"auc": 0.5, "log_loss": 0.25}),
            },
            ["last window of 1,000: AUC 0.5000, log loss 0.2500"],
        ),
    ],
)
def test_the_scores_of_the_last_window_are_told(windows, words):
    assert words_of(Figures(1, 8, 0.5, windows=windows))[2:-1] == words


def test_late_and_bad_samples_of_a_stream_are_told():
    stream = StreamFigures(None, None, num_late=2, num_bad=3)
    assert words_of(Figures(1, 8, 0.5, stream=stream))[2:-1] == ["2 late", "3 bad"]
