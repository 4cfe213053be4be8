from tools import drop_in_table


def test_the_page_shows_the_table_of_the_tests():
    text = drop_in_table.PAGE.read_text()
    assert drop_in_table.page(text) == text, "run python -m tools.drop_in_table"


def test_an_old_table_is_replaced():
    text = f"before\n{drop_in_table.BEGIN}old\n{drop_in_table.END}after\n"
    new = drop_in_table.page(text)
    assert new.startswith("before\n")
    assert new.endswith("after\n")
    assert drop_in_table.table() in new
