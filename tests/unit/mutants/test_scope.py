"""What the files about mutants name is in the tree: modules, functions, and folders of tests."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.operators import functions
from tests.mutants.results import EXPLAINED, SUMS, Explanation, Sum, load_lines
from tests.mutants.scope import GROUPS, ROOT, Group


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_modules_and_tests_of_a_group_exist(group: Group) -> None:
    paths = [*group.files(), *group.tests, *group.wider]
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_counted_modules_exist() -> None:
    modules = [counts.module for counts in load_lines(SUMS, Sum)]
    assert len(modules) == len(set(modules)) > 0
    assert [module for module in modules if not (ROOT / module).exists()] == []


def test_explained_functions_exist() -> None:
    explained = load_lines(EXPLAINED, Explanation)
    named = {(each.module, each.key.partition(":")[0]) for each in explained}
    present = set()
    for module in {module for module, _ in named}:
        if (ROOT / module).exists():
            tree = ast.parse((ROOT / module).read_bytes())
            present |= {(module, name) for name, _ in functions(tree)}
    assert named - present == set()
    assert named
