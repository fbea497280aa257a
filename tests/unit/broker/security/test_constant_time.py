"""Secrets are compared in constant time.

`==` ends at the first byte that differs, and its time shows how much was right.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
MODULES = sorted(
    [*(ROOT / "broker/security").glob("*.py"), ROOT / "protocol/scram.py", ROOT / "protocol/client/sasl.py"]
)
SECRET = ("key", "proof", "password", "digest", "signature", "nonce", "hmac", "salted")
"""Ends of names that hold a secret, or what is computed from one."""


def name_of(node: ast.expr) -> str:
    """The last name of an expression: `known.stored_key`, `digest(password)`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=function):
            return name_of(function)
        case _:
            return ""


def compared_at_once(source: str) -> list[int]:
    """Lines that compare a secret by `==` or `!=`, with something that is no constant."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and any(isinstance(each, ast.Eq | ast.NotEq) for each in node.ops):
            sides = [node.left, *node.comparators]
            if not any(isinstance(side, ast.Constant) for side in sides) and any(
                name_of(side).endswith(SECRET) for side in sides
            ):
                found.append(node.lineno)
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_no_secret_is_compared_at_once(path: Path) -> None:
    assert compared_at_once(path.read_text(encoding="utf-8")) == []


def test_the_rule_sees_a_comparison() -> None:
    assert compared_at_once("if known.stored_key == digest(proof):\n    pass") == [1]
    assert compared_at_once("hmac.compare_digest(known.stored_key, digest(proof))") == []
