"""Every example in a docstring of the product is true: `make test` runs them all."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

from .test_tidy import ROOT, SOURCES, relative

PROMPT = ">>>"
MODULES = [path for path in SOURCES if PROMPT in path.read_text(encoding="utf-8")]


def test_there_are_examples():
    """The list of modules follows the folders of the package: if it were empty, nothing would run below."""
    assert len(MODULES) > 20


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_the_examples_of_a_module_are_true(path: Path, capsys: pytest.CaptureFixture[str]):
    """Each prompt in the file is an example that runs: none stands in a comment or in a string that doctest skips."""
    names = path.relative_to(ROOT).with_suffix("").parts
    module = importlib.import_module(".".join(("lowtide", *names)).removesuffix(".__init__"))
    found = sum(len(test.examples) for test in doctest.DocTestFinder().find(module))
    assert found == path.read_text(encoding="utf-8").count(PROMPT), "doctest does not find every example of the file"
    failed = doctest.testmod(module).failed
    assert failed == 0, capsys.readouterr().out
