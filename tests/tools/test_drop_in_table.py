from tools import drop_in_table


def test_the_page_shows_the_table_of_the_tests():
    assert drop_in_table.table() in drop_in_table.PAGE.read_text(), "run python -m tools.drop_in_table"
        "run python -m tools.drop_in_table"
    )
