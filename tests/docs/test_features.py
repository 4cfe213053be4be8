from monolith.features.engine import COMBINERS
from tests.docs.pages import first_cells, page


def test_the_page_lists_every_combiner():
    assert tuple(first_cells(page("docs/features.md"), "| combiner |")) == COMBINERS
