import json

from monolith.checkpoint.state import _MONOLITH_SCHEMA, _SCHEMA
from tests.docs.pages import first_cells, page, run_snippets
from tests.meta.tree import ROOT


def test_snippets_of_the_page_run():
    attempted, problems = run_snippets("docs/checkpoints.md")
    assert attempted > 15
    assert problems == ""


def test_the_page_of_formats_names_every_field_of_the_manifest():
    cells = first_cells(page("docs/formats.md"), "| field |")
    named = {name for cell in cells for name in cell.replace("`", "").split(", ")}
    golden = ROOT / "tests/golden/checkpoint-v2/model.ckpt-8.manifest.json"
    assert named == set(json.loads(golden.read_text()))


def test_the_page_of_formats_names_every_field_of_the_state_files():
    text = page("docs/formats.md")
    rows = [line.split("|")[2].strip().strip("`") for line in text.splitlines() if "|" in line]
    for schema in (_SCHEMA, _MONOLITH_SCHEMA):
        assert [name for name in rows if name in schema] == list(schema)
