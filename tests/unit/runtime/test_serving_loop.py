"""What an event loop reports.

Everything that nothing has caught, but for a write of uvloop's TLS to a connection that was closed.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lowtide.runtime.serving_loop import new_serving_loop, report

CLOSED = RuntimeError(
    "unable to perform operation on <TCPTransport closed=True reading=False 0x55c147d995a0>; the handler is closed"
)
ON_TLS = "Fatal error on SSL protocol"


class Loop(asyncio.BaseEventLoop):
    def __init__(self) -> None:
        self.reported: list[dict[str, Any]] = []

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.reported.append(context)

    def __del__(self) -> None:
        """Nothing was opened."""


@pytest.mark.parametrize(
    ("message", "error", "is_reported"),
    [
        (ON_TLS, CLOSED, False),
        (ON_TLS, RuntimeError("something else"), True),
        (ON_TLS, OSError(str(CLOSED)), True),
        ("Exception in callback", CLOSED, True),
        ("Task exception was never retrieved", None, True),
    ],
)
def test_only_a_write_of_tls_to_a_closed_connection_is_no_fault(
    message: str, error: Exception | None, *, is_reported: bool
) -> None:
    loop = Loop()
    context: dict[str, Any] = {"message": message} | ({} if error is None else {"exception": error})
    report(loop, context)
    assert loop.reported == ([context] if is_reported else [])


def test_a_loop_that_serves_reports_in_this_way() -> None:
    with asyncio.Runner(loop_factory=new_serving_loop) as runner:
        assert runner.get_loop().get_exception_handler() is report
