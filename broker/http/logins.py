"""Logins of visitors by name and password (HTTP Basic), against the SCRAM users of the cluster.

A browser sends the password with every request. The slow step is done elsewhere, for one request at a time; what was found right is
remembered for a while by a keyed digest, as long as the credential is the same. A failure is answered at a time that doesn't depend on what
is wrong, unknown users cost what known ones do, and who fails too often isn't looked at for a while.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from lowtide.broker.security.principal import ANONYMOUS, USER_TYPE, KafkaPrincipal, ShownBy
from lowtide.broker.security.scram import ScramCredentials, mock_credential
from lowtide.protocol.scram import ScramCredential, ScramMechanism, credential_of, salted_password
from lowtide.runtime.clock import Clock
from lowtide.runtime.http_connection import Rates, visitor_of
from lowtide.runtime.random import Random
from lowtide.runtime.worker import Worker, done_by

REMEMBERED_MAX: Final = 64
REMEMBERED_MS: Final = 300_000

FAILURES_PER_S: Final = 1
FAILURE_BURST: Final = 10
"""Of a visitor: so many failed logins a second, and so many at once."""

ALL_FAILURES_PER_S: Final = 20
ALL_FAILURE_BURST: Final = 100

DELAY_MS_MIN: Final = 100
"""A failure is answered so late at least: longer than the slow step takes."""

WAITING_MAX: Final = 16
"""Logins that may wait for the slow step."""

NAME_CHARACTERS_MAX: Final = 1024
"""Of a name or a password."""

_KEY_BITS: Final = 256


class Visitor(NamedTuple):
    """Who sends a request, for rules and the audit log."""

    principal: KafkaPrincipal
    client_address: str
    listener_name: str
    shown_by: ShownBy = ShownBy.NOTHING


class TooManyLoginsError(Exception):
    """This login isn't looked at: too many have failed, or wait."""


class Logins:
    """Checks passwords. Used from the event loop."""

    def __init__(
        self,
        credentials: ScramCredentials,
        worker: Worker,
        clock: Clock,
        random: Random,
        delay_ms: Callable[[], int],
        on_login: Callable[[Visitor, str], None],
    ) -> None:
        """`on_login` is called with the visitor and why it failed, or with nothing where it didn't; `delay_ms` is how late a failure is."""
        self._credentials = credentials
        self._worker = worker
        self._clock = clock
        self._delay_ms = delay_ms
        self._on_login = on_login
        self._key = random.getrandbits(_KEY_BITS).to_bytes(_KEY_BITS // 8, "big")
        self._remembered: OrderedDict[bytes, tuple[ScramCredential, int]] = OrderedDict()
        now_ms = clock.monotonic_ms()
        self._failures = Rates(now_ms, (FAILURES_PER_S, FAILURE_BURST), (ALL_FAILURES_PER_S, ALL_FAILURE_BURST))
        self._waiting = 0
        self._turn = asyncio.Semaphore(1)

    async def is_right(self, address: str, listener_name: str, user: str, password: str) -> bool:
        """Whether this is the password of a user that there is. Errors: TooManyLoginsError."""
        mechanism, credential = self._of(user)
        digest = hmac.digest(self._key, f"{user}\0{password}".encode("utf-8", "surrogatepass"), "sha256")
        if credential is not None and self._remembers(digest, credential):
            return True
        began_ms = self._clock.monotonic_ms()
        visitor = visitor_of(address)
        if self._waiting >= WAITING_MAX or not self._failures.has(visitor, began_ms):
            raise TooManyLoginsError
        proves = await self._proves(mechanism, credential or mock_credential(mechanism, self._credentials, user), password)
        if proves and credential is not None and self._of(user)[1] == credential:
            self._remember(digest, credential)
            self._on_login(Visitor(KafkaPrincipal(USER_TYPE, user), address, listener_name, ShownBy.LOGIN), "")
            return True
        self._failures.take(visitor, began_ms)
        reason = f"HTTP Basic of user {user[:100]!r}: the user is unknown, or the password is wrong"
        self._on_login(Visitor(ANONYMOUS, address, listener_name), reason)
        late_ms = began_ms + max(self._delay_ms(), DELAY_MS_MIN) - self._clock.monotonic_ms()
        await asyncio.sleep(max(late_ms, 0) / 1000)
        return False

    async def _proves(self, mechanism: ScramMechanism, credential: ScramCredential, password: str) -> bool:
        self._waiting += 1
        try:
            async with self._turn:
                salt, iterations = credential.salt, credential.iterations
                salted = await done_by(self._worker, lambda: salted_password(mechanism, password, salt, iterations))
        finally:
            self._waiting -= 1
        return hmac.compare_digest(credential_of(mechanism, salted, salt, iterations).stored_key, credential.stored_key)

    def _of(self, user: str) -> tuple[ScramMechanism, ScramCredential | None]:
        for mechanism in ScramMechanism:
            credential = self._credentials.of(mechanism, user)
            if credential is not None:
                return mechanism, credential
        return ScramMechanism.SHA_256, None

    def _remembers(self, digest: bytes, credential: ScramCredential) -> bool:
        found = self._remembered.get(digest)
        return found is not None and found[0] == credential and self._clock.monotonic_ms() - found[1] < REMEMBERED_MS

    def _remember(self, digest: bytes, credential: ScramCredential) -> None:
        self._remembered[digest] = credential, self._clock.monotonic_ms()
        self._remembered.move_to_end(digest)
        if len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)
