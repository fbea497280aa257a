"""Every example in a docstring of the product is true: `make test` runs them all."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

from .test_tidy import ROOT, SOURCES, relative

EXAMPLED = [path for path in SOURCES if ">>> " in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", EXAMPLED, ids=relative)
def test_the_examples_of_a_module_are_true(path: Path, capsys: pytest.CaptureFixture[str]):
    """A reader tries them first."""
    names = path.relative_to(ROOT).with_suffix("").parts
    module = importlib.import_module(".".join(("lowtide", *names)).removesuffix(".__init__"))
    assert any(test.examples for test in doctest.DocTestFinder().find(module)), (
        "no docstring has what looks like an example"
    )
    failed = doctest.testmod(module).failed
    assert failed == 0, capsys.readouterr().out
