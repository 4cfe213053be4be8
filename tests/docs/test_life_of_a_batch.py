import re

from tests.docs.pages import page
from tests.meta.tree import ROOT, SRC

PAGE = page("docs/life_of_a_batch.md")
DRAWING = (ROOT / "docs" / "images" / "life_of_a_batch.svg").read_text()
FILE = re.compile(r"(?:\w+/)+(?:\w+\.(?:py|h|cpp))?")


def is_there(name):
    return (ROOT / name).exists() or (SRC / name).exists()


def test_every_file_on_the_page_exists():
    quoted = [text for text in re.findall(r"`([^`]+)`", PAGE) if FILE.fullmatch(text)]
    assert len(quoted) > 40
    assert [name for name in quoted if not is_there(name)] == []


def test_every_file_in_the_drawing_exists():
    drawn = [name for name in FILE.findall(DRAWING.split("</style>")[1]) if "/" in name]
    files = [name for name in drawn if name.endswith((".py", "/")) and not name.startswith("www")]
    assert len(files) >= 8
    assert [name for name in files if not is_there(name)] == []


def test_the_loop_names_the_stages_of_the_page_in_order():
    loop = (SRC / "train" / "loop.py").read_text()
    numbers = [int(number) for number in re.findall(r"# (\d)(?:, \d)?:", loop)]
    assert numbers == sorted(numbers) == [1, 2, 3, 5, 6, 7]
