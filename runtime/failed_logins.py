"""Limits failed logins: above the limit, passwords are refused without a check.

Pure: the caller reports each outcome. Guards: wrong passwords of one user, or from one address, don't lock out other
users or addresses. The limits of one address and of all addresses don't apply to users who have logged in from their
address within the last hour.
"""

from __future__ import annotations

from typing import Final

from lowtide.runtime.addresses import network_of
from lowtide.runtime.http_visits import KnownVisitors, Rates

FAILURES_PER_S: Final = 1
FAILURE_BURST: Final = 10
"""Failed logins of one user from one visitor: per second, and at once."""

VISITOR_FAILURES_PER_S: Final = 2
VISITOR_FAILURE_BURST: Final = 40
"""Failed logins of one visitor, for all users."""

ALL_FAILURES_PER_S: Final = 20
ALL_FAILURE_BURST: Final = 100
"""Failed logins of all visitors."""


class FailedLogins:
    """Counts failed logins by user and address."""

    def __init__(self, now_ms: int) -> None:
        self._of_user = Rates(now_ms, (FAILURES_PER_S, FAILURE_BURST))
        self._of_strangers = Rates(
            now_ms, (VISITOR_FAILURES_PER_S, VISITOR_FAILURE_BURST), (ALL_FAILURES_PER_S, ALL_FAILURE_BURST)
        )
        self._known = KnownVisitors()

    def may_try(self, address: str, user: str, now_ms: int) -> bool:
        """Returns whether a password of this user, from this address, may be checked."""
        visitor = network_of(address)
        if not self._of_user.has(f"{visitor} {user}", now_ms):
            return False
        return self.is_known(address, user, now_ms) or self._of_strangers.has(visitor, now_ms)

    def is_known(self, address: str, user: str, now_ms: int) -> bool:
        """Returns whether a user has recently logged in from this address."""
        return self._known.has(f"{network_of(address)} {user}", now_ms)

    def failed(self, address: str, user: str, now_ms: int) -> None:
        visitor = network_of(address)
        self._of_user.take(f"{visitor} {user}", now_ms)
        self._of_strangers.take(visitor, now_ms)

    def succeeded(self, address: str, user: str, now_ms: int) -> None:
        self._known.add(f"{network_of(address)} {user}", now_ms)
