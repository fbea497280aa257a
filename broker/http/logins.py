"""Checks visitors' names and passwords (HTTP Basic) against the SCRAM users of the cluster.

A browser sends the password with every request. A worker does the slow step, for one request at a time. A right
password is remembered for a while as a keyed digest, until the credential changes. The time of a failed login's answer
doesn't depend on the fault, and unknown users cost as much as known ones. A client that fails too often is refused
unchecked for a while.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from lowtide.broker.security.principal import ANONYMOUS, USER_TYPE, KafkaPrincipal, ShownBy
from lowtide.broker.security.scram import ScramCredentials, mock_credential
from lowtide.protocol.scram import ScramCredential, ScramMechanism, credential_of, salted_password
from lowtide.runtime.addresses import network_of
from lowtide.runtime.clock import Clock
from lowtide.runtime.failed_logins import FailedLogins
from lowtide.runtime.random import Random
from lowtide.runtime.worker import Worker, done_by

REMEMBERED_MAX: Final = 64
REMEMBERED_MS: Final = 300_000

DELAY_MS_MIN: Final = 100
"""The shortest time until a failed login is answered, longer than the slow step."""

WAITING_MAX: Final = 16
"""The maximum number of logins that wait for the slow step."""

STRANGERS_WAITING_MAX: Final = 12
"""The maximum number of these by users without a recent login from their address."""

VISITOR_WAITING_MAX: Final = 4
"""The maximum number of these from one address."""

NAME_CHARACTERS_MAX: Final = 1024
"""The maximum length of a name or password."""

_KEY_BITS: Final = 256


class Visitor(NamedTuple):
    """The sender of a request, for access rules and the audit log."""

    principal: KafkaPrincipal
    client_address: str
    listener_name: str
    shown_by: ShownBy = ShownBy.NOTHING


class TooManyLoginsError(Exception):
    """Too many logins have failed or are waiting, so this one isn't checked."""


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
        """Calls `on_login` with the visitor and the reason of a failure, or an empty text.

        `delay_ms`: how long a failed login waits for its answer.
        """
        self._credentials = credentials
        self._worker = worker
        self._clock = clock
        self._delay_ms = delay_ms
        self._on_login = on_login
        self._key = random.getrandbits(_KEY_BITS).to_bytes(_KEY_BITS // 8, "big")
        self._remembered: OrderedDict[bytes, tuple[ScramCredential, int]] = OrderedDict()
        self._failures = FailedLogins(clock.monotonic_ms())
        self._waiting: Counter[str] = Counter()
        self._turn = asyncio.Semaphore(1)

    async def is_right(self, address: str, listener_name: str, user: str, password: str) -> bool:
        """Returns whether the user exists and has this password. Errors: TooManyLoginsError."""
        mechanism, credential = self._of(user)
        digest = hmac.digest(self._key, f"{user}\0{password}".encode("utf-8", "surrogatepass"), "sha256")
        if credential is not None and self._remembers(digest, credential):
            return True
        began_ms = self._clock.monotonic_ms()
        if not self._failures.may_try(address, user, began_ms) or not self._may_wait(address, user, began_ms):
            raise TooManyLoginsError
        checked = credential or mock_credential(mechanism, self._credentials, user)
        proves = await self._proves(network_of(address), mechanism, checked, password)
        if proves and credential is not None and self._of(user)[1] == credential:
            self._remember(digest, credential)
            self._failures.succeeded(address, user, began_ms)
            self._on_login(Visitor(KafkaPrincipal(USER_TYPE, user), address, listener_name, ShownBy.LOGIN), "")
            return True
        self._failures.failed(address, user, began_ms)
        reason = f"HTTP Basic of user {user[:100]!r}: the user is unknown, or the password is wrong"
        self._on_login(Visitor(ANONYMOUS, address, listener_name), reason)
        late_ms = began_ms + max(self._delay_ms(), DELAY_MS_MIN) - self._clock.monotonic_ms()
        await asyncio.sleep(max(late_ms, 0) / 1000)
        return False

    def _may_wait(self, address: str, user: str, now_ms: int) -> bool:
        places = WAITING_MAX if self._failures.is_known(address, user, now_ms) else STRANGERS_WAITING_MAX
        return self._waiting[network_of(address)] < VISITOR_WAITING_MAX and self._waiting.total() < places

    async def _proves(
        self, visitor: str, mechanism: ScramMechanism, credential: ScramCredential, password: str
    ) -> bool:
        self._waiting[visitor] += 1
        try:
            async with self._turn:
                salt, iterations = credential.salt, credential.iterations
                salted = await done_by(self._worker, lambda: salted_password(mechanism, password, salt, iterations))
        finally:
            self._waiting[visitor] -= 1
            self._waiting += Counter()  # Drops zero counts.
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
