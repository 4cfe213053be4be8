import ast

import pytest

from monolith.cli.tasks.task_imports import MOVED, TaskImportError, check_imports
from monolith.native_training.tasks.native_params import PARAMETERS
from tests.docs.pages import blocks, first_rows, page, run_snippets
from tests.meta.parity import code
from tools import params_table

MIGRATE, PARAMS = page("docs/reference/migrate.md"), page("docs/reference/params.md")
IMPORTS = first_rows(MIGRATE, "| import in the reference system |")


def change_of(tmp_path, line):
    """What the command line says about an import; None if the import is there."""
    path = tmp_path / "ported.py"
    path.write_text(f"{line}\nimport monolith.base_model\n")
    try:
        check_imports(path)
    except TaskImportError as error:
        return str(error)
    return None


@pytest.mark.parametrize(("old", "new"), IMPORTS)
def test_an_import_of_the_table_is_there_or_has_one_in_its_place(tmp_path, old, new):
    change = change_of(tmp_path, code(old)[0])
    if new.startswith("stays"):
        assert change is None
        exec(code(old)[0], {})
    elif new.startswith("none"):
        assert "remove the line" in change
    else:
        assert f"change it to '{code(new)[0]}'" in change
        exec(code(new)[0], {})


def test_the_table_has_every_import_that_the_command_line_changes(tmp_path):
    olds = "\n".join(code(old)[0] for old, _ in IMPORTS)
    paths = set()
    for node in ast.walk(ast.parse(olds)):
        if isinstance(node, ast.ImportFrom):
            paths |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            paths.add(node.module.split(".")[0])
    assert set(MOVED) - paths == set()


def test_the_operations_of_the_table_run():
    import torch

    x = [torch.ones(2, 3, requires_grad=True)] * 2
    for _, new in first_rows(MIGRATE, "| in the reference system |"):
        text = code(new)[0]
        whole = x if "(x" in text and "sum(x" not in text and "sigmoid" not in text else x[0]
        names = {"torch": torch, "x": x[0] if "grad" in text or "reshape" in text else whole}
        eval(text, {**names, "loss": x[0].sum()})


def test_the_snippets_run():
    attempted, problems = run_snippets("docs/reference/migrate.md")
    assert attempted == 5
    assert problems == ""


def test_the_page_shows_what_the_command_prints(tmp_path):
    (shown,) = [b for b in blocks(MIGRATE, "console") if "error:" in b]
    (tmp_path / "my_task.py").write_text("# a\n# b\nimport tensorflow as tf\nimport idl\n")
    with pytest.raises(TaskImportError) as caught:
        check_imports(tmp_path / "my_task.py")
    assert str(caught.value).replace(f"{tmp_path}/", "") in shown


def test_the_table_of_parameters_is_as_the_tool_writes_it():
    assert params_table.table() in PARAMS, "run python -m tools.params_table"


def test_what_the_page_calls_refused_is_refused():
    rows = {code(name)[0]: text for name, _, text in first_rows(PARAMS, "| parameter |")}
    refused = {name for name, text in rows.items() if text.startswith("refused: needs")}
    assert refused == {name for name, parameter in PARAMETERS.items() if parameter.needs}
    assert len(refused) > 10
