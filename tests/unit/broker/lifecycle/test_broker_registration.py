"""Log lines of a broker about the store that it joins."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.lifecycle.broker_registration import warn_without_raft_log
from lowtide.metadata.etcd_address import parse_address


@pytest.mark.parametrize(
    ("place", "surplus", "lines"), [("etcd", None, 1), ("etcd", 3, 0), ("etcd", -3, 0), ("/d/lowtide.sqlite", None, 0)]
)
def test_an_etcd_that_refuses_its_status_is_a_warning(place: str, surplus: int | None, lines: int) -> None:
    """Some releases allow the status only to the user root. A store in a file has no raft log."""
    said: list[Any] = []

    async def raft_surplus() -> int | None:
        return surplus

    store: Any = SimpleNamespace(raft_surplus=raft_surplus)
    log = SimpleNamespace(warning=lambda event, **_: said.append(event))
    asyncio.run(
        warn_without_raft_log(store, parse_address("etcd://127.0.0.1:2379").text if place == "etcd" else place, log)
    )
    assert len(said) == lines
