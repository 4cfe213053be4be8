"""The commands, options and numbers of docs/online.md and of the streams in docs/metrics.md."""

import re
from importlib import import_module

import typer

from monolith.cli.options.stream_options import BATCH_SECONDS
from monolith.data.files.stream_uri import KAFKA, OPTIONS, is_stream_uri
from monolith.train.settings import SCORE_SAMPLES, SCORE_SECONDS
from tests.docs.pages import first_cells, page
from tests.docs.shell import Shell
from tests.meta.tree import ROOT

NAME = "docs/online.md"
PAGE = page(NAME)


def test_the_page_works_from_top_to_bottom(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Shell(tmp_path).run_page(capsys, monkeypatch, NAME)


def options(name):
    command = typer.main.get_command(import_module(f"monolith.cli.{name}").app)
    return {option: parameter for parameter in command.params for option in parameter.opts}


def test_options_in_the_text_exist():
    known = {name for command in ("launch", "train") for name in options(command)}
    demo = typer.main.get_command(import_module("monolith.cli.demo").app).commands["stream"]
    known |= {name for parameter in demo.params for name in parameter.opts}
    assert {*re.findall(r"--[a-z][a-z-]+", PAGE)} <= known


def test_the_numbers_are_the_defaults():
    assert f"`--batch-seconds` ({BATCH_SECONDS})" in PAGE
    words = f"windows of {SCORE_SAMPLES:,} samples and of {SCORE_SECONDS:.0f} seconds"
    assert words in " ".join(PAGE.split())
    demo = typer.main.get_command(import_module("monolith.cli.demo").app).commands["stream"]
    defaults = {parameter.name: parameter.default for parameter in demo.params}
    assert f"{defaults['clicks']:,} clicks, {defaults['rate']:,.0f} a second" in PAGE


def test_the_options_of_topics_are_those_of_their_uris():
    assert sorted(first_cells(PAGE, "| option of `kafka://` |")) == sorted(OPTIONS[KAFKA])


def test_the_uris_are_those_of_streams():
    assert all(map(is_stream_uri, first_cells(PAGE, "| URI |")))


def test_the_demonstration_has_a_target():
    assert "demo-stream: build" in (ROOT / "Makefile").read_text()
