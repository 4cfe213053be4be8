import doctest
import re

from tests.docs.pages import blocks, check_command, console_cases, page

NAME = "docs/bring_your_model.md"
PAGE = page(NAME)


def test_the_page_works_from_top_to_bottom(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = {}
    for kind, text in re.findall(r"^```(python|console)\n(.*?)^```$", PAGE, re.M | re.S):
        if kind == "console":
            for command, shown in console_cases(text):
                check_command(capsys, monkeypatch, command, shown)
        elif ">>>" in text:
            test = doctest.DocTestParser().get_doctest(text, names, NAME, None, 0)
            assert doctest.DocTestRunner().run(test, clear_globs=False).failed == 0
            names = test.globs
        else:
            exec(compile(text, NAME, "exec"), names)


def test_every_command_of_the_page_is_shown_with_its_output():
    shown = [command for block in blocks(PAGE, "console") for command, _ in console_cases(block)]
    commands = {" ".join(command.split()[1:3]) for command in shown}
    assert commands >= {"import embedding", "import parquet", "export rows", "export torchrec"}
