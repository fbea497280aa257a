"""The statements of a module, for rules about classes and imports: most nodes of a tree are in expressions."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yields all statements below this node at any depth, with handlers of exceptions and cases of matches."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield child
            yield from statements(child)
