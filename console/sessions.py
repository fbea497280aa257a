"""Who is visiting: sessions, each with a client that is logged in as the visitor's user, so that the cluster decides what it may do.

A session is found by a random cookie of 256 bits, of which only the hash is kept. It ends when it wasn't used for `IDLE_MS`, when it is
`AGE_MS_MAX` old, or when it is logged out. Where the cluster asks for no login all visitors share one session.
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
from lowtide.console.settings import ConsoleSettings, Login
from lowtide.console.work import Work
from lowtide.protocol.client.sasl import ClientSaslSettings
from lowtide.runtime.failed_logins import FailedLogins

if TYPE_CHECKING:
    from lowtide.runtime.clock import Clock
    from lowtide.runtime.random import Random
    from lowtide.runtime.tasks import TaskRegistry

SESSIONS_MAX: Final = 32
SESSIONS_OF_USER_MAX: Final = 8
"""Of one user: the one that was used least recently gives way."""

IDLE_MS: Final = 30 * 60_000
AGE_MS_MAX: Final = 12 * 3_600_000
TOKEN_BITS: Final = 256
TOKEN_CHARACTERS_MAX: Final = 128

_BY_PASSWORD: Final = b" by password"
"""Behind such keys, so that no cookie finds their sessions: by cookies a password could be guessed."""

STREAMS_MAX: Final = 8
"""Of events, in one session."""


class NoRoomError(Exception):
    """There are too many sessions, or too many failed logins."""


class Session:
    """One visitor: a client, and what it has under way."""

    def __init__(self, user: str | None, client: AdminClient, work: Work, now_ms: int) -> None:
        self.user = user
        self.client = client
        self.work = work
        self.began_ms = self.used_ms = now_ms
        self.streams = 0

    def is_over(self, now_ms: int) -> bool:
        """Whether it may not be used any more."""
        idle = now_ms - self.used_ms > IDLE_MS and not self.streams and not self.work.is_busy
        return idle or now_ms - self.began_ms > AGE_MS_MAX

    def is_as_before(self, now_ms: int) -> None:
        """It is in use."""
        self.used_ms = now_ms


@dataclass(frozen=True, slots=True)
class Ports:
    """What the outside gives."""

    clock: Clock
    random: Random
    tasks: TaskRegistry


class Sessions:
    """All sessions of a console. `close` ends them."""

    def __init__(self, settings: ConsoleSettings, ports: Ports) -> None:
        self._settings = settings
        self._ports = ports
        self._by_hash: OrderedDict[bytes, Session] = OrderedDict()
        self._shared: Session | None = None
        self._failures = FailedLogins(ports.clock.monotonic_ms())
        self._opening = asyncio.Lock()

    # ------------------------------------------------------------------ those that are there
    def found(self, cookie: str | None) -> Session | None:
        """The session of a visitor. Where no login is needed there always is one."""
        now_ms = self._ports.clock.monotonic_ms()
        self.sweep()
        if self._settings.login is Login.NONE:
            if self._shared is None:
                self._shared = self._new(None, self._settings.client)
            session: Session | None = self._shared
        else:
            session = self._by_hash.get(_hash(cookie)) if cookie and len(cookie) <= TOKEN_CHARACTERS_MAX else None
        if session is not None:
            session.is_as_before(now_ms)
        return session

    def sweep(self) -> None:
        """End what is over."""
        now_ms = self._ports.clock.monotonic_ms()
        for key in [key for key, session in self._by_hash.items() if session.is_over(now_ms)]:
            self._end(self._by_hash.pop(key))
        if self._shared is not None and self._shared.is_over(now_ms):
            self._end(self._shared)
            self._shared = None

    # ------------------------------------------------------------------ login
    async def log_in(self, address: str, user: str, password: str, mechanism: str) -> tuple[str, Session]:
        """A session of a user whom the cluster lets in, with its cookie. Errors: NoRoomError, AdminError."""
        session = await self._opened(address, user, password, (mechanism,))
        return self._keep(session), session

    async def _opened(self, address: str, user: str, password: str, mechanisms: Sequence[str]) -> Session:
        """By the first mechanism that lets the user in. Errors: as `log_in`."""
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

    async def _connected(self, user: str, password: str, mechanism: str) -> Session:
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

    async def of_password(self, address: str, user: str, password: str) -> Session:
        """The session of a visitor who shows name and password with each request: opened at the first one.

        Errors: as `log_in`.
        """
        key = _hash(f"{len(user)} {user} {password}") + _BY_PASSWORD
        async with self._opening:
            self.sweep()
            session = self._by_hash.get(key)
            if session is None:
                session = await self._opened(address, user, password, self._settings.mechanisms)
                self._put(key, session)
        session.is_as_before(self._ports.clock.monotonic_ms())
        return session

    def open_by_token(self, address: str, token: str) -> tuple[str, Session] | None:
        """A session for who has the token that the command printed; None for another token. Errors: NoRoomError."""
        self._check_room(address, "")
        expected = self._settings.token or ""
        if not expected or not hmac.compare_digest(token.encode(), expected.encode()):
            self._failures.failed(address, "", self._ports.clock.monotonic_ms())
            return None
        session = self._new(None, self._settings.client)
        return self._keep(session), session

    def log_out(self, cookie: str | None) -> None:
        """End a visitor's session."""
        session = self._by_hash.pop(_hash(cookie), None) if cookie else None
        if session is not None:
            self._end(session)

    async def close(self) -> None:
        """End all."""
        sessions = [*self._by_hash.values(), *([self._shared] if self._shared is not None else [])]
        self._by_hash.clear()
        self._shared = None
        for session in sessions:
            await session.client.close()

    def _check_room(self, address: str, user: str) -> None:
        if not self._failures.may_try(address, user, self._ports.clock.monotonic_ms()):
            raise NoRoomError("too many logins have failed: try again in a minute")

    def _new(self, user: str | None, settings: object) -> Session:
        make: Callable[[object], AdminClient] = self._settings.make_client
        clock = self._ports.clock
        return Session(user, make(settings), Work(clock, self._ports.random, self._ports.tasks), clock.monotonic_ms())

    def _keep(self, session: Session) -> str:
        cookie = f"{self._ports.random.getrandbits(TOKEN_BITS):064x}"
        self._put(_hash(cookie), session)
        return cookie

    def _put(self, key: bytes, session: Session) -> None:
        """Keeps a session.

        If its user has too many, the least recently used ends; if places lack, one of a user with the most.
        """
        self.sweep()
        counts = Counter(each.user for each in self._by_hash.values())
        if counts[session.user] >= SESSIONS_OF_USER_MAX:
            giving_way = {session.user}
        elif len(self._by_hash) >= SESSIONS_MAX:
            giving_way = {user for user, count in counts.items() if count == max(counts.values())}
        else:
            giving_way = set()
        oldest = min(
            (each for each, other in self._by_hash.items() if other.user in giving_way), key=self._used_ms, default=None
        )
        if oldest is not None:
            self._end(self._by_hash.pop(oldest))
        self._by_hash[key] = session

    def _used_ms(self, key: bytes) -> int:
        return self._by_hash[key].used_ms

    def _end(self, session: Session) -> None:
        self._ports.tasks.spawn(session.client.close(), name="a session of the console ends")


def _hash(cookie: str | None) -> bytes:
    return hashlib.sha256((cookie or "").encode()).digest()
