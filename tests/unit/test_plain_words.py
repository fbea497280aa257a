"""Pages are in plain technical English: words that a reader from elsewhere stumbles over are not used.

A page says what happens, to what, and what to do: "returns" or "reports" instead of "is told", "again" instead of "anew", "a client that"
instead of "whoever", "created" instead of "made". Text in code marks is left out, and so is output that a command prints.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
"""The sentences of `docs/configuration.md` are in `broker/config/`."""

NOT_PLAIN = re.compile(
    r"\b(?:told|tells|anew|whoever|whomever|nobody|somebody|anybody|everybody|hears|lest|thereof|wherein"
    r"|(?:is|are|was|were|be|been|being) made(?! (?:of|by|from|up|for)\b)|makes? anew|made anew|he|his|him|isn't there)\b",
    re.IGNORECASE,
)

CODE = re.compile(r"```.*?```|^    [^\n]*$|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def prose(path: Path) -> str:
    """A page without its code; of the changelog what is not released, for the rest is history."""
    text = path.read_text(encoding="utf-8")
    if path.name == "CHANGELOG.md":
        text = text.partition("\n## Unreleased\n")[2].partition("\n## ")[0]
    return CODE.sub(lambda found: "\n" * found[0].count("\n"), text)


@pytest.mark.parametrize(
    ("sentence", "word"),
    [
        ("Clients are told the address.", "told"),
        ("A topic is made.", "is made"),
        ("Whoever reads it.", "Whoever"),
        ("There is nobody else.", "nobody"),
        ("He closes his connection.", "He"),
        ("It registers anew.", "anew"),
    ],
)
def test_the_list_finds_them(sentence: str, word: str):
    """Or the test below protects nothing."""
    found = NOT_PLAIN.search(sentence)
    assert found is not None
    assert found[0] == word


@pytest.mark.parametrize("sentence", ["It is made of segments.", "The history of the cache.", "Output: `nobody told him anew`."])
def test_the_list_leaves_other_words_alone(sentence: str):
    assert NOT_PLAIN.search(CODE.sub("", sentence)) is None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_plain(page: Path):
    text = prose(page)
    found = [f"line {text.count(chr(10), 0, match.start()) + 1}: {match[0]}" for match in NOT_PLAIN.finditer(text)]
    assert found == []
