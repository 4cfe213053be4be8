import ast
import json

import pytest

from tools import break_statements
from tools.break_statements import main, statements, wrong

OLD = """class TableVerbs:
    def size(self):
        total = self.rows + 1
        if total > 3:
            return total
        return 0
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.setattr(break_statements, "COUNT", 4)
    path = tmp_path / "src/monolith/old/verbs.py"
    path.parent.mkdir(parents=True)
    path.write_text(OLD)
    return tmp_path


def draw(tree, capsys):
    main(["draw", str(tree)])
    text = capsys.readouterr().out
    (tree / "drawn.json").write_text(text)
    return json.loads(text)


def test_a_statement_is_drawn_with_its_function_and_its_break(tree, capsys):
    assert {(entry["statement"], entry["break"]) for entry in draw(tree, capsys)} == {
        ("total = self.rows + 1", "total = self.rows - 1"),
        ("if total > 3", "not (total > 3)"),
        ("return total", "return None"),
        ("return 0", "return 1"),
    }
    assert draw(tree, capsys) == draw(tree, capsys)


def test_a_statement_is_broken_in_another_file_under_another_name_and_restored(tree, capsys):
    index = [entry["kind"] for entry in draw(tree, capsys)].index("If")
    old = tree / "src/monolith/old/verbs.py"
    new = old.with_name("base.py")
    text = OLD.replace("TableVerbs", "BaseTable")
    new.write_text(text)
    old.unlink()
    main(["break", str(tree), "--drawn", str(tree / "drawn.json"), "--index", str(index)])
    assert new.read_text() == text.replace("total > 3", "not (total > 3)")
    main(["restore", str(tree)])
    assert new.read_text() == text
    assert not (tree / break_statements.BACKUP).exists()


def test_a_second_break_waits_for_the_restore(tree, capsys):
    draw(tree, capsys)
    command = ["break", str(tree), "--drawn", str(tree / "drawn.json"), "--index", "0"]
    main(command)
    with pytest.raises(SystemExit, match="exists: restore first"):
        main(command)


def test_a_statement_that_is_gone_is_told_with_its_neighbours(tree, capsys):
    draw(tree, capsys)
    path = tree / "src/monolith/old/verbs.py"
    path.write_text("def size(self):\n    return 5\n")
    with pytest.raises(SystemExit, match=r"0 places for .*\n  src/monolith/old/verbs.py:2 size"):
        main(["break", str(tree), "--drawn", str(tree / "drawn.json"), "--index", "0"])


def test_a_place_can_be_chosen(tree, capsys):
    draw(tree, capsys)
    command = ["break", str(tree), "--drawn", str(tree / "drawn.json"), "--index", "0"]
    main([*command, "--at", "src/monolith/old/verbs.py:6"])
    assert (tree / "src/monolith/old/verbs.py").read_text() == OLD.replace("return 0", "return 1")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("True", "False"),
        ("2", "3"),
        ("'a'", "'ax'"),
        ("a < b", "not (a < b)"),
        ("-a", "a"),
        ("a and b", "a or b"),
        ("a if b else c", "c if b else a"),
        ("a + b", "a - b"),
        ("'a' + b", "b + 'a'"),
        ("(a, b, c)", "(b, a, c)"),
        ("[a]", "[a][1:]"),
        ("{}", "{None: None}"),
        ("f(a, b)", "f(b, a)"),
        ("f(a)", "a"),
        ("f(a, b).g()", "f(b, a).g()"),
        ("a[0]", "a[1]"),
        ("a[b]", "a"),
        ("a", "None"),
    ],
)
def test_a_wrong_value(value, expected):
    assert wrong(ast.parse(value, mode="eval").body) == expected


def test_statements_outside_functions_are_not_drawn(tree):
    (tree / "src/monolith/old/verbs.py").write_text("x = 1\nif x:\n    def f(): return 2\n")
    assert [statement.text for statement in statements(tree)] == ["return 2"]
