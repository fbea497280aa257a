"""The sessions of visitors. Each has a client that is logged in as the visitor, so the cluster decides what it may do.

A random cookie of 256 bits identifies a session; only its hash is kept. A session ends after `IDLE_MS` without use,
after `AGE_MS_MAX`, or at logout. Without logins all visitors share one session.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from lowtide.admin.client import AdminClient
from lowtide.admin.errors import AuthenticationFailedError
from lowtide.console.own_users import OwnUser, Role, TooManyChecksError
from lowtide.console.settings import ConsoleSettings, LoginKind
from lowtide.console.work import SessionWork
from lowtide.protocol.client.sasl import ClientSaslSettings
from lowtide.runtime.failed_logins import FailedLogins

if TYPE_CHECKING:
    from lowtide.runtime.clock import Clock
    from lowtide.runtime.random import Random
    from lowtide.runtime.tasks import TaskRegistry

SESSIONS_MAX: Final = 32
SESSIONS_OF_USER_MAX: Final = 8
"""Sessions of one user; the least recently used one is ended for a new one."""

IDLE_MS: Final = 30 * 60_000
AGE_MS_MAX: Final = 12 * 3_600_000
TOKEN_BITS: Final = 256
TOKEN_CHARACTERS_MAX: Final = 128

_BY_PASSWORD: Final = b" by password"
"""A suffix of keys from passwords, so that no cookie finds their sessions: cookies could guess passwords."""

STREAMS_MAX: Final = 8
"""Streams of events in one session."""


class NoRoomError(Exception):
    """Too many sessions, or too many failed logins."""


class WrongLoginError(Exception):
    """The console has no user with this name and password."""


class ConsoleSession:
    """A visitor's session: its client, and its running work."""

    def __init__(
        self, user: str | None, client: AdminClient, work: SessionWork, now_ms: int, own: OwnUser | None = None
    ) -> None:
        """`own`: the entry of a user of the console."""
        self.user = user
        self.own = own
        self.client = client
        self.work = work
        self.began_ms = self.used_ms = now_ms
        self.streams = 0

    def is_over(self, now_ms: int) -> bool:
        """Returns whether the session has expired."""
        idle = now_ms - self.used_ms > IDLE_MS and not self.streams and not self.work.is_busy
        return idle or now_ms - self.began_ms > AGE_MS_MAX

    @property
    def may_write(self) -> bool:
        """Whether the visitor's role allows changes; users of the cluster have the rights of the cluster."""
        return self.own is None or self.own.role is Role.WRITE

    def touch(self, now_ms: int) -> None:
        """Notes that the session is used."""
        self.used_ms = now_ms


@dataclass(frozen=True, slots=True)
class ConsolePorts:
    """Clock, random numbers and tasks, and the key that signs receipts."""

    clock: Clock
    random: Random
    tasks: TaskRegistry
    signing_key: str | None = None
    """The file of the private key; None without one."""


class Sessions:
    """All sessions of a console."""

    def __init__(self, settings: ConsoleSettings, ports: ConsolePorts) -> None:
        self._settings = settings
        self._ports = ports
        self._by_hash: OrderedDict[bytes, ConsoleSession] = OrderedDict()
        self._shared: ConsoleSession | None = None
        self._failures = FailedLogins(ports.clock.monotonic_ms())
        self._opening = asyncio.Lock()

    # ------------------------------------------------------------------ existing sessions
    def found(self, cookie: str | None) -> ConsoleSession | None:
        """Returns the session of a visitor. Without logins there always is one."""
        now_ms = self._ports.clock.monotonic_ms()
        self.sweep()
        if self._settings.login is LoginKind.NONE:
            if self._shared is None:
                self._shared = self._new(None, self._settings.client)
            session: ConsoleSession | None = self._shared
        else:
            key = _hash(cookie)
            session = self._by_hash.get(key) if cookie and len(cookie) <= TOKEN_CHARACTERS_MAX else None
            if session is not None and not self._is_still_user(session):
                self._end(self._by_hash.pop(key))
                session = None
        if session is not None:
            session.touch(now_ms)
        return session

    def sweep(self) -> None:
        """Ends expired sessions."""
        now_ms = self._ports.clock.monotonic_ms()
        for key in [key for key, session in self._by_hash.items() if session.is_over(now_ms)]:
            self._end(self._by_hash.pop(key))
        if self._shared is not None and self._shared.is_over(now_ms):
            self._end(self._shared)
            self._shared = None

    # ------------------------------------------------------------------ login
    async def log_in(self, address: str, user: str, password: str, mechanism: str) -> tuple[str, ConsoleSession]:
        """Logs in to the cluster; returns a session with its cookie. Errors: NoRoomError, AdminError."""
        session = await self._opened(address, user, password, (mechanism,))
        return self._keep(session), session

    async def log_in_here(self, address: str, user: str, password: str) -> tuple[str, ConsoleSession]:
        """Logs in a user of the console; returns as `log_in`. Errors: NoRoomError, WrongLoginError."""
        assert self._settings.users is not None
        self._check_room(address, user)
        try:
            own = await self._settings.users.checked(user, password)
        except TooManyChecksError:
            raise NoRoomError("too many logins wait for their check: try again in a minute") from None
        now_ms = self._ports.clock.monotonic_ms()
        if own is None:
            self._failures.failed(address, user, now_ms)
            raise WrongLoginError
        self._failures.succeeded(address, user, now_ms)
        session = self._new(user, self._settings.client, own)
        return self._keep(session), session

    def _is_still_user(self, session: ConsoleSession) -> bool:
        """Returns whether the line of a user of the console is as it was at the login."""
        users = self._settings.users
        return users is None or session.user is None or users.of(session.user) == session.own

    async def _opened(self, address: str, user: str, password: str, mechanisms: Sequence[str]) -> ConsoleSession:
        """Logs in with the first mechanism that succeeds. Errors: as `log_in`."""
        self._check_room(address, user)
        *others, last = mechanisms
        try:
            for mechanism in others:
                with suppress(AuthenticationFailedError):
                    return await self._connected(user, password, mechanism)
            session = await self._connected(user, password, last)
        except AuthenticationFailedError:
            self._failures.failed(address, user, self._ports.clock.monotonic_ms())
            raise
        self._failures.succeeded(address, user, self._ports.clock.monotonic_ms())
        return session

    async def _connected(self, user: str, password: str, mechanism: str) -> ConsoleSession:
        settings = replace(
            self._settings.client, sasl=ClientSaslSettings(mechanism=mechanism, username=user, password=password)
        )
        session = self._new(user, settings)
        try:
            await session.client.describe_cluster()
        except BaseException:
            await session.client.close()
            raise
        return session

    async def of_password(self, address: str, user: str, password: str) -> ConsoleSession:
        """Returns the session of a visitor who sends name and password with each request. Errors: as `log_in`."""
        key = _hash(f"{len(user)} {user} {password}") + _BY_PASSWORD
        async with self._opening:
            self.sweep()
            session = self._by_hash.get(key)
            if session is None:
                session = await self._opened(address, user, password, self._settings.mechanisms)
                self._put(key, session)
        session.touch(self._ports.clock.monotonic_ms())
        return session

    def open_by_token(self, address: str, token: str) -> tuple[str, ConsoleSession] | None:
        """Opens a session with the token that the command printed; None for another token. Errors: NoRoomError."""
        self._check_room(address, "")
        expected = self._settings.token or ""
        if not expected or not hmac.compare_digest(token.encode(), expected.encode()):
            self._failures.failed(address, "", self._ports.clock.monotonic_ms())
            return None
        session = self._new(None, self._settings.client)
        return self._keep(session), session

    def log_out(self, cookie: str | None) -> None:
        """Ends a visitor's session."""
        session = self._by_hash.pop(_hash(cookie), None) if cookie else None
        if session is not None:
            self._end(session)

    async def close(self) -> None:
        """Ends all sessions."""
        sessions = [*self._by_hash.values(), *([self._shared] if self._shared is not None else [])]
        self._by_hash.clear()
        self._shared = None
        for session in sessions:
            session.work.end()
            await session.client.close()

    def _check_room(self, address: str, user: str) -> None:
        if not self._failures.may_try(address, user, self._ports.clock.monotonic_ms()):
            raise NoRoomError("too many logins have failed: try again in a minute")

    def _new(self, user: str | None, settings: object, own: OwnUser | None = None) -> ConsoleSession:
        make: Callable[[object], AdminClient] = self._settings.make_client
        clock = self._ports.clock
        return ConsoleSession(
            user, make(settings), SessionWork(clock, self._ports.random, self._ports.tasks), clock.monotonic_ms(), own
        )

    def _keep(self, session: ConsoleSession) -> str:
        cookie = f"{self._ports.random.getrandbits(TOKEN_BITS):064x}"
        self._put(_hash(cookie), session)
        return cookie

    def _put(self, key: bytes, session: ConsoleSession) -> None:
        """Keeps a session, and ends one if there are too many.

        Of the same user, or of a user with the most sessions.
        """
        self.sweep()
        counts = Counter(each.user for each in self._by_hash.values())
        if counts[session.user] >= SESSIONS_OF_USER_MAX:
            crowded = {session.user}
        elif len(self._by_hash) >= SESSIONS_MAX:
            crowded = {user for user, count in counts.items() if count == max(counts.values())}
        else:
            crowded = set()
        oldest = min(
            (each for each, other in self._by_hash.items() if other.user in crowded), key=self._used_ms, default=None
        )
        if oldest is not None:
            self._end(self._by_hash.pop(oldest))
        self._by_hash[key] = session

    def _used_ms(self, key: bytes) -> int:
        return self._by_hash[key].used_ms

    def _end(self, session: ConsoleSession) -> None:
        session.work.end()
        self._ports.tasks.spawn(session.client.close(), name="a session of the console ends")


def _hash(cookie: str | None) -> bytes:
    return hashlib.sha256((cookie or "").encode()).digest()
