"""Pages are in plain technical English: words that a reader from elsewhere stumbles over are not used.

A page says what happens, to what, and what to do: "returns" or "reports" instead of "is told", "again" instead of "anew", "a client that"
instead of "whoever", "created" instead of "made". Text in code marks is left out, and so is output that a command prints.
"""

from __future__ import annotations

import re
import tokenize
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

FOLDERS = tuple(
    "admin bench broker cli console demo examples metadata pipeline protocol replication runtime simulation src storage testing"
    " tests".split()
)
MODULES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if path != Path(__file__))
"""This module quotes the words."""

NOT_IN_CODE = re.compile(r"\b(?:told|anew|whoever|nobody|somebody|See the module)\b", re.IGNORECASE)

NOT_IN_TESTS = re.compile(r"\b(?:whomever|anybody|everybody|hears|lest|mended|he|his|him|goes on)\b", re.IGNORECASE)
"""Besides, in the folders `PLAINEST`."""

PLAINEST = frozenset({"bench", "demo", "examples", "tests"})

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


ONE_WORD = re.compile(r"""[a-z]*(["'])\w+\1""", re.IGNORECASE)
"""A string of one word is a name or a value, such as the parameter of a test, and no sentence."""

NAMED = re.compile(r"`[^`]+`|\{[a-z_.]+\}")
"""Names within a text: in code marks, and as the value of an f-string, which Python 3.11 does not tokenize by itself."""


def not_plain_in(path: Path, words: re.Pattern[str] = NOT_IN_CODE) -> list[str]:
    """The words in strings, docstrings and comments of a module, with the lines that these begin in."""
    with tokenize.open(path) as file:
        texts = [token for token in tokenize.generate_tokens(file.readline) if tokenize.tok_name[token.type] in TEXTS]
    texts = [token for token in texts if not ONE_WORD.fullmatch(token.string)]
    return [f"line {token.start[0]}: {match[0]}" for token in texts for match in words.finditer(NAMED.sub("", token.string))]


TEXTS = {"STRING", "FSTRING_MIDDLE", "COMMENT"}
"""Python 3.11 has an f-string as one STRING."""


@pytest.mark.parametrize("line", ['"""See the module."""', "x = 1  # told", "x = f'{1} anew'", "x = 'Whoever asks'", "# nobody, somebody"])
def test_code_is_searched(line: str, tmp_path: Path):
    (tmp_path / "module.py").write_text(line, encoding="utf-8")
    assert not_plain_in(tmp_path / "module.py")


def test_names_in_code_are_left_alone(tmp_path: Path):
    (tmp_path / "module.py").write_text("told = {'told': 'anew', 'log': f'{told} {self.told}'}  # `told`\n", encoding="utf-8")
    assert not_plain_in(tmp_path / "module.py") == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_code_of_a_folder_is_plain(folder: str):
    modules = [path for path in MODULES if path.is_relative_to(ROOT / folder)]
    assert modules
    assert [f"{path.relative_to(ROOT)} {found}" for path in modules for found in not_plain_in(path)] == []


@pytest.mark.parametrize("folder", sorted(PLAINEST))
def test_the_tests_are_plainer(folder: str):
    modules = [path for path in MODULES if path.is_relative_to(ROOT / folder)]
    assert [f"{path.relative_to(ROOT)} {found}" for path in modules for found in not_plain_in(path, NOT_IN_TESTS)] == []
