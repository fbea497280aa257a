"""Commands on pages have one form, and each page has been tried."""

from __future__ import annotations

import re
from fnmatch import fnmatch

import pytest

from tests.pages import pages, steps, table, without_a_prompt

PAGE = """# Title

    $ seq 2 \\
        3
    2
    3

    key=value

1. In a list:

        $ lowtide records find orders --keys-from -
        ann
        found

```python
print("x")
```

It prints

    x

    kcat -L
"""


def test_commands_and_programs_of_a_page_are_found_with_what_they_print():
    first, second, third = steps("page", PAGE)
    assert (first.text, first.printed) == ("seq 2 3", ("2", "3"))
    assert (second.typed, second.printed) == ("ann\n", ("found",))
    assert (third.name, third.text, third.printed) == ("program 1", 'print("x")\n', ("x",))
    assert without_a_prompt("page", PAGE) == ["    kcat -L"]


FOR_CONTRIBUTORS = {"docs/own-tests.md"}


@pytest.mark.parametrize("page", [page for page in pages() if page not in FOR_CONTRIBUTORS])
def test_commands_begin_with_a_prompt(page: str):
    """So a reader sees what to type, and the tests of pages find every command."""
    assert without_a_prompt(page, pages()[page]) == []


def test_each_page_has_been_tried():
    """A new page needs a row: when it was followed literally, at which commit, and what could not be tried."""
    rows = {row[0].strip("`"): row[1:] for row in table("Pages")}
    untried = [page for page in pages() if not any(fnmatch(page, name) for name in rows)]
    assert untried == []
    assert [name for name in rows if not any(fnmatch(page, name) for page in pages())] == []
    for date, commit, done, _ in rows.values():
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", date)
        assert re.fullmatch(r"[0-9a-f]{7,12}", commit)
        assert done
