import pytest

from tools.sizes import cpp_functions, python_functions, too_large


def write(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.thorough
def test_files_and_functions_are_within_their_limits():
    assert too_large() == []


@pytest.mark.parametrize(
    ("name", "limit"), [("src/a.py", 600), ("native/a.h", 800), ("native/a.cpp", 800)]
)
def test_a_long_file_is_found(tmp_path, name, limit):
    write(tmp_path, name, "\n" * (limit + 1))
    assert too_large(tmp_path) == [f"{tmp_path / name}: {limit + 1} lines, at most {limit}"]


@pytest.mark.parametrize(
    ("name", "head", "tail"), [("src/a.py", "def f():", ""), ("native/a.h", "void f() {", "}\n")]
)
def test_a_long_function_is_found(tmp_path, name, head, tail):
    write(tmp_path, name, head + "\n" + "    g();\n" * 81 + tail)
    assert too_large(tmp_path) == [f"{tmp_path / name}:f: 81 lines, at most 80"]


def test_a_python_body_is_counted_without_its_docstring():
    assert list(python_functions('def f():\n    """One.\n\n    Two.\n    """\n    g()\n')) == [
        ("f", 1)
    ]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("namespace a {\nint f(int x) {\n  return x;\n}\n}", [("f", 1)]),
        ("class A {\n  void g() const {\n    h();\n    if (x) {\n    }\n  }\n};", [("g", 3)]),
        ("A::A(int x) : x_{x}, y_(1) {\n}", [("A::A", 0)]),
        ("void f(Options options = {}) {\n  g();\n}", [("f", 1)]),
        ("auto f() -> int {\n  auto g = [](int x) {\n    return x;\n  };\n}", [("f", 3)]),
        ('void f() {\n  // }\n  g("}");\n  /* } */\n}', [("f", 3)]),
        ("struct alignas(64) Line {\n  int x;\n  int f() {\n  }\n};", [("f", 0)]),
        ("struct alignas(alignof(A)) [[gnu::packed]] B {\n  int x;\n};", []),
        ("[[gnu::target(1)]] int f() {\n  g();\n}", [("f", 1)]),
        ("struct A {\n  int x = 1;\n};\nconst int table[] = {\n  1, 2,\n};", []),
    ],
)  # fmt: skip
def test_cpp_functions_are_found_by_their_braces(source, expected):
    assert list(cpp_functions(source)) == expected
