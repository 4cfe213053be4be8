import json

import pytest

from tools import acceptance
from tools.acceptance import Entry, listed_ids, parse, render, summary, update

TABLE = acceptance.HEADER + (
    "| cluster | NT-HVD-T1..T3, NT-HVD-T5 | not built |\n"
    "| features | GP-T1 | skipped |\n"
    "| ops | NT-NEST-T1..T2 | passed |\n"
    "| ops | NT-NEST-T3 | passed in part |\n"
)


@pytest.fixture
def project(tmp_path, monkeypatch, capsys):
    """Runs the tool on a page, with what a test run left, and returns what it printed."""
    monkeypatch.setattr(acceptance, "PAGE", tmp_path / "parity.md")
    monkeypatch.setattr(acceptance, "RUN", tmp_path / "acceptance.json")
    monkeypatch.setattr(acceptance, "NOTES", tmp_path / "notes.json")
    acceptance.PAGE.write_text(f"text\n{acceptance.BEGIN}{TABLE}{acceptance.END}rest\n")

    def run(outcomes, *words, notes=None):
        monkeypatch.setattr("sys.argv", ["acceptance.py", *words])
        acceptance.RUN.write_text(json.dumps(outcomes))
        acceptance.NOTES.write_text(json.dumps(notes or {}))
        status, texts = acceptance.main(), capsys.readouterr()
        return texts.out.splitlines() if status == 0 else (status, texts.err)

    return run


def test_ids_of_parts_without_a_module_are_ids_too():
    assert listed_ids("SV-T1..T2, RT-T3 GP-T1, G-T2; NOT-T1") == {
        "SV-T1", "SV-T2", "RT-T3", "GP-T1", "G-T2",
    }  # fmt: skip


def test_a_table_is_written_as_it_was_read():
    assert render(parse(TABLE)) == TABLE
    assert parse(TABLE)["NT-HVD-T5"] == Entry("cluster", "not built")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("| ops | NT-NEST-T9 | fine |", "expected one of .*, got 'fine'"),
        ("| ops | NT-NEST-T1 | passed |", r"expected every id once, got \['NT-NEST-T1'\] again"),
    ],
)
def test_a_wrong_row_is_refused(row, words):
    with pytest.raises(ValueError, match=words):
        parse(TABLE + row)


def test_a_run_changes_the_states_of_its_ids_alone():
    states = update(parse(TABLE), {"NT-NEST-T1": "failed", "NT-HVD-T2": "passed"})
    assert states["NT-NEST-T1"] == Entry("ops", "failed")
    assert states["NT-HVD-T2"] == Entry("cluster", "passed")
    assert states["NT-NEST-T2"] == Entry("ops", "passed")


def test_an_id_that_the_page_does_not_have_is_refused():
    with pytest.raises(ValueError, match=r"expected ids of docs/parity.md, got \['NT-X-T1'\]"):
        update(parse(TABLE), {"NT-X-T1": "passed"})


def test_failed_ids_are_counted_where_there_are_any():
    assert summary(parse(TABLE).values()) == "2 passed, 1 in part, 1 skipped, 4 not built"
    assert "1 failed" in summary([Entry("ops", "failed")])


def test_the_tool_prints_differences_notes_and_counts(project):
    lines = project({"NT-NEST-T3": "passed"}, notes={"GP-T1": "device result out of date"})
    assert lines == [
        "NT-NEST-T3: passed; docs/parity.md: passed in part",
        "GP-T1: skipped, device result out of date",
        "to update the page: python tools/acceptance.py --write",
        "acceptance ids: 3 passed, 0 in part, 1 skipped, 4 not built",
    ]


def test_the_tool_writes_the_page(project):
    project({"NT-HVD-T5": "passed"}, "--write")
    assert "| cluster | NT-HVD-T5 | passed |\n" in acceptance.PAGE.read_text()
    assert acceptance.PAGE.read_text().endswith(f"{acceptance.END}rest\n")
    assert project({}) == ["acceptance ids: 3 passed, 1 in part, 1 skipped, 3 not built"]


def test_a_run_of_other_ids_ends_the_tool_with_the_reason(project):
    status, text = project({"NT-X-T1": "passed"})
    assert status == 1
    assert text == "[acceptance] expected ids of docs/parity.md, got ['NT-X-T1']; add them\n"
