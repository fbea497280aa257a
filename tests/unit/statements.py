"""The statements and the nodes of a module, for rules about the code. Most nodes of a tree are in expressions."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yields all statements below this node at any depth, with handlers of exceptions and cases of matches."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield child
            yield from statements(child)


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yields what `ast.walk` does, in another order and in less time: rules walk over all modules."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                waiting.extend(each for each in value if isinstance(each, ast.AST))
            elif isinstance(value, ast.AST):
                waiting.append(value)
