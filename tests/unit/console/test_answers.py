"""What pages show of texts that brokers send."""

from __future__ import annotations

import pytest

from lowtide.console.answers import meaning_of


@pytest.mark.parametrize(
    ("documentation", "meaning"),
    [
        ("The codec; `producer` keeps the producer's.", "The codec; producer keeps the producer's."),
        ("One of <code>delete</code>,<br/>or <a href='#x'>compact</a>.", "One of delete, or compact."),
        ("Between 1 &lt; 2, a < b, and a > b.", "Between 1 < 2, a < b, and a > b."),
        ("", None),
        (None, None),
    ],
)
def test_a_meaning_has_no_marks(documentation: str | None, meaning: str | None) -> None:
    assert meaning_of(documentation) == meaning
