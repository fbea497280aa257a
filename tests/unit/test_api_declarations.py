"""An API is declared in one place: its handler's module. Tables by API elsewhere are derived from it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from lowtide.broker import handlers
from lowtide.broker.guards.guard import CHECKS_ITSELF, FOR_EVERYONE, OwnGuard
from lowtide.broker.handlers import share
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.protocol.api_keys import ApiKey
from tests.each import each
from tests.unit.broker.declared import SPECS

from .statements import nodes

ROOT = Path(__file__).resolve().parents[2]
KEYS_MAX = 5
"""So many APIs a module may tell apart."""

TABLES = {"broker/network/routing/features.py": 11}
"""Modules that name more: which APIs a feature of the cluster needs. The list only shrinks."""

ALL_KEYS = "protocol/api_keys.py"


def keys_of(tree: ast.AST) -> set[str]:
    """Returns the API keys that a module names."""
    return {
        node.attr
        for node in nodes(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ApiKey"
    }


def named() -> dict[str, int]:
    """Returns how many API keys each module of the broker and of the protocol names."""
    paths = [path for folder in ("broker", "protocol", "replication") for path in (ROOT / folder).rglob("*.py")]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    counts = {path: len(keys_of(ast.parse(text))) for path, text in texts.items() if "ApiKey" in text}
    return {path: count for path, count in counts.items() if path != ALL_KEYS}


def test_no_other_module_has_a_table_of_apis() -> None:
    assert {path: count for path, count in named().items() if count > KEYS_MAX} == TABLES


def test_each_api_is_declared_in_the_module_of_its_name() -> None:
    folders = [Path(package.__file__ or "").parent for package in (handlers, share)]
    declared = {path.stem for folder in folders for path in folder.glob("*.py")}
    assert {key.name.lower() for key in SPECS} <= declared
    assert len(SPECS) > 75


@each("key", sorted(SPECS), lambda key: key.name)
def test_each_api_has_one_handler(key: ApiKey) -> None:
    spec = SPECS[key]
    assert (spec.handle is None) != (spec.handle_later is None)
    assert spec.forwarding is None or spec.handle_later is not None


WITHOUT_PERMISSION = {
    ApiKey.API_VERSIONS,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
    ApiKey.PUSH_TELEMETRY,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.SASL_HANDSHAKE,
}
CHECK_THEMSELVES = {
    ApiKey.ALTER_STANDING_ERASURES,
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.DELETE_RECORDS,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELETES,
    ApiKey.DESCRIBE_HEALTH,
    ApiKey.DESCRIBE_HISTORY,
    ApiKey.DESCRIBE_RETENTION,
    ApiKey.DESCRIBE_SEGMENTS,
    ApiKey.DESCRIBE_STANDING_ERASURES,
    ApiKey.ENVELOPE,
    ApiKey.ERASE_RECORDS,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.FETCH,
    ApiKey.FIND_RECORDS,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.WRITE_TXN_MARKERS,
}


def test_all_apis_but_these_have_a_guard() -> None:
    """A new API without a guard must be added here too."""
    assert {key for key, spec in SPECS.items() if spec.guard == FOR_EVERYONE} == WITHOUT_PERMISSION
    assert {key for key, spec in SPECS.items() if spec.guard == CHECKS_ITSELF} == CHECK_THEMSELVES
    assert all(
        callable(SPECS[key].guard) or isinstance(SPECS[key].guard, OwnGuard)
        for key in SPECS.keys() - WITHOUT_PERMISSION - CHECK_THEMSELVES
    )


def test_a_handler_cannot_be_made_without_a_guard() -> None:
    with pytest.raises(TypeError, match="guard"):
        HandlerSpec(key=ApiKey.PRODUCE, handle=lambda _request, _context: None)  # type: ignore[call-arg]
