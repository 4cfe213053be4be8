from tools import page_table


def test_an_old_table_is_replaced():
    text = f"before\n{page_table.BEGIN}old\n{page_table.END}after\n"
    new = page_table.with_table(text, "new\n")
    assert new == f"before\n{page_table.BEGIN}new\n{page_table.END}after\n"


def test_the_page_is_rewritten(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"{page_table.BEGIN}old\n{page_table.END}")
    page_table.rewrite(page, "new\n")
    assert page.read_text() == f"{page_table.BEGIN}new\n{page_table.END}"
