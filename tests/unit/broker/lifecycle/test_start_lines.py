"""Log lines of a start: a name that clients are sent to in vain, and a module that wasn't compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from lowtide.broker.config.listeners import ConfiguredListener
from lowtide.broker.lifecycle.start_lines import (
    RESOLVED_WITHIN_S,
    warn_of_unresolved,
    warn_without_compiled_module,
    with_ports,
)
from lowtide.protocol import native

INSIDE, OUTSIDE = (
    ConfiguredListener("INSIDE", "PLAINTEXT", "broker-1", 19092),
    ConfiguredListener("OUTSIDE", "PLAINTEXT", "10.0.0.1", 0),
)


class Lines:
    def __init__(self) -> None:
        self.warned: list[tuple[str, dict[str, Any]]] = []

    def warning(self, event: str, **fields: Any) -> None:
        self.warned.append((event, fields))


def test_a_port_that_the_system_chose_is_named() -> None:
    assert with_ports([INSIDE, OUTSIDE], {"INSIDE": 1, "OUTSIDE": 2}) == [
        "INSIDE://broker-1:19092",
        "OUTSIDE://10.0.0.1:2",
    ]


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_name_that_does_not_resolve_is_a_warning(is_known: bool) -> None:
    async def look_up(hosts: Sequence[str], within_s: float) -> Mapping[str, str]:
        assert (list(hosts), within_s) == (["broker-1", "10.0.0.1"], RESOLVED_WITHIN_S)
        return {} if is_known else {"broker-1": "Name or service not known"}

    lines = Lines()
    await warn_of_unresolved([INSIDE, OUTSIDE], lines, look_up)
    if is_known:
        assert lines.warned == []
        return
    ((event, fields),) = lines.warned
    assert event == "an advertised host name does not resolve on this machine"
    assert fields["advertised"] == ["INSIDE://broker-1:19092"]
    assert fields["reasons"] == ["Name or service not known"]
    assert "advertised.listeners" in fields["remedy"]


@pytest.mark.parametrize(
    ("present", "wish", "expected"), [(True, "", False), (False, "", True), (False, "0", True), (False, "1", False)]
)
def test_a_module_that_was_not_compiled_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, present: bool, wish: str, expected: bool
) -> None:
    """Unless `LOWTIDE_PURE` asked for that."""
    monkeypatch.setattr(native, "compiled", object() if present else None)
    monkeypatch.setenv(native.PURE_VARIABLE, wish)

    def missing(_name: str) -> None:
        raise ModuleNotFoundError

    monkeypatch.setattr("importlib.import_module", missing)
    lines = Lines()
    warn_without_compiled_module(lines)
    assert len(lines.warned) == expected
    assert all(fields["reason"] == "it was not compiled when Lowtide was installed" for _, fields in lines.warned)
