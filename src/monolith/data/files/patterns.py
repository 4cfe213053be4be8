"""File patterns with dates and numbers."""

import re
import warnings
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from itertools import product

from monolith.data.files.listing import find_files
from monolith.errors import NotFoundError

_RANGE = re.compile(r"\{(\w+)\(([^(),]*),([^(),]*)\)\}")


def expand_template(template: str) -> list[str]:
    """Expand a template with ranges, which include both ends; spaces are removed.

    `{INT(0, 5)}` gives integers. `{DATE(20201120, 20201210)}` gives days, and two more digits give
    hours. The last range varies fastest.

    Raises:
        ValueError: a range has an unknown type, bounds that are no dates or integers, or no values.

    Example:
        >>> expand_template("day_{DATE(20201231, 20210101)}/part_{INT(0, 1)}")
        ['day_20201231/part_0', 'day_20201231/part_1', 'day_20210101/part_0', 'day_20210101/part_1']
    """
    template = template.replace(" ", "")
    pieces = _RANGE.split(template)  # text, type, begin, end, text, ..., text
    ranges = [_values(*pieces[at : at + 3]) for at in range(1, len(pieces), 4)]
    texts = pieces[::4]
    patterns = []
    for values in product(*ranges):
        parts = (text + value for text, value in zip(texts, [*values, ""], strict=True))
        patterns.append("".join(parts))
    return patterns


def _values(kind: str, begin: str, end: str) -> list[str]:
    text = f"{{{kind}({begin},{end})}}"
    try:
        if kind == "INT":
            values = [str(number) for number in range(int(begin), int(end) + 1)]
        elif kind == "DATE" and len(begin) == len(end) and len(begin) in (8, 10):
            values = _dates(begin, end)
        else:
            raise ValueError("type")
    except ValueError as error:
        raise ValueError(
            f"[expand_template] expected INT of integers, or DATE of 8 or 10 digits, got {text}"
        ) from error
    if not values:
        raise ValueError(f"[expand_template] expected an end that is not before, got {text}")
    return values


def _dates(begin: str, end: str) -> list[str]:
    form = "%Y%m%d%H" if len(begin) == 10 else "%Y%m%d"
    step = timedelta(hours=1) if len(begin) == 10 else timedelta(days=1)
    first, last = datetime.strptime(begin, form), datetime.strptime(end, form)
    return [(first + at * step).strftime(form) for at in range((last - first) // step + 1)]


def matching_patterns(patterns: Iterable[str]) -> list[str]:
    """Return the patterns that match a file; warn of the others.

    Raises:
        NotFoundError: no pattern matches a file.
    """
    matches = []
    for pattern in patterns:
        try:
            find_files(pattern)
        except NotFoundError:
            warnings.warn(f"[matching_patterns] no file matches {pattern!r}", stacklevel=2)
        else:
            matches.append(pattern)
    if not matches:
        raise NotFoundError("[matching_patterns] no match files")
    return matches


def gen_patterns(
    input_path: str,
    start_date: str,
    start_hour: int = 0,
    end_date: str | None = None,
    end_hour: int = 0,
    is_hourly: bool = False,
    wildcard: str = "*",
) -> Sequence[str]:
    """Return the patterns of the days, or hours, from a start to an end, without the end.

    Args:
        input_path: folder with a folder for each day.
        start_date: first day, `YYYYMMDD`.
        start_hour: first hour; only with `is_hourly`.
        end_date: day of the end, `YYYYMMDD`; None means today.
        end_hour: hour of the end; only with `is_hourly`.
        is_hourly: whether to return `{input_path}/{YYYYMMDD}/{HH}{wildcard}` for each hour instead
            of `{input_path}/{YYYYMMDD}/{wildcard}` for each day.
        wildcard: end of the patterns.

    Raises:
        ValueError: a date cannot be parsed.

    Example:
        >>> gen_patterns("data", "20220901", end_date="20220903")
        ['data/20220901/*', 'data/20220902/*']
    """
    first = datetime.strptime(start_date, "%Y%m%d")
    last = datetime.strptime(end_date or date.today().strftime("%Y%m%d"), "%Y%m%d")
    step, form = timedelta(days=1), "%Y%m%d/"
    if is_hourly:
        first, last = first + timedelta(hours=start_hour), last + timedelta(hours=end_hour)
        step, form = timedelta(hours=1), "%Y%m%d/%H"
    count = max(0, -((first - last) // step))
    return [f"{input_path}/{first + at * step:{form}}{wildcard}" for at in range(count)]
