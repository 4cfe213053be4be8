from tools import drop_in_table


def test_the_page_shows_the_table_of_the_tests():
    shown = drop_in_table.PAGE.read_text()
    assert drop_in_table.table() in shown, "run python -m tools.drop_in_table"
