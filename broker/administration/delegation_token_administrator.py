"""Creates, renews, expires, describes and sweeps the delegation tokens of the cluster.

Any broker may change tokens. All brokers have the same secret (`delegation.token.secret.key`); without it there are no
tokens.

Guards: a change is answered when this broker and all other registered brokers act on it (`spread`). So a new token
logs in everywhere, and an expired one nowhere. Sources: KIP-48, KIP-373; Kafka's `DelegationTokenControlManager`.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from lowtide.broker.administration.committing import decide_and_commit
from lowtide.broker.administration.spread import Spread
from lowtide.broker.config.key import number
from lowtide.broker.context import BrokerContext
from lowtide.broker.security.delegation_tokens import SALT_BYTES, credentials_of, is_shown, later, may_change, secret_of
from lowtide.broker.security.principal import KafkaPrincipal
from lowtide.metadata import keys
from lowtide.metadata.changes import ChangePlan
from lowtide.metadata.records import ScramRecord, TokenRecord
from lowtide.metadata.token_image import TokenImage
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.scram import ScramMechanism
from lowtide.protocol.types import topic_id_text
from lowtide.replication.delegation_token_changes import (
    check_names,
    plan_new_token,
    plan_removed_token,
    plan_sweep_of_tokens,
    plan_token_end,
)
from lowtide.replication.refusal import Refusal
from lowtide.runtime.random import Random
from lowtide.runtime.worker import done_by

TIMEOUT_S: Final = 30
"""The time limit of a change. Requests have no field for one."""

WHAT: Final = "delegation tokens"
PERIOD: Final = "delegation.token.expiry.time.ms"
DISABLED: Final = Refusal(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, "delegation.token.secret.key is not set.")
NOT_FOUND: Final = Refusal(ErrorCode.DELEGATION_TOKEN_NOT_FOUND, "There is no such token.")
EXPIRED: Final = Refusal(ErrorCode.DELEGATION_TOKEN_EXPIRED, "The token has expired.")
NOT_ITS_OWNER: Final = Refusal(
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, "Only its owner and its renewers change a token."
)

_ID_BITS: Final = 128
_STEP_TOKENS: Final = 100
"""The tokens examined in one step, about a millisecond."""


class IssuedToken(msgspec.Struct, frozen=True):
    """A token with its HMAC, which `repr` hides."""

    token: TokenRecord
    hmac: bytes

    def __repr__(self) -> str:
        return f"IssuedToken({self.token.token_id!r})"


class _TokenPlan(msgspec.Struct, frozen=True):
    plan: ChangePlan
    expires_ms: int = 0


class TokenAdministrator:
    """Changes the tokens of the cluster from this broker."""

    def __init__(self, broker: BrokerContext, spread: Spread) -> None:
        """Waits through `spread` until the other brokers confirm a change."""
        self.broker = broker
        self._secret = secret_of(broker.config.values["delegation.token.secret.key"])
        self._spread = spread

    @property
    def is_enabled(self) -> bool:
        """Whether the cluster has a secret, and so can have tokens."""
        return self._secret is not None

    async def create(
        self, requester: KafkaPrincipal, owner: KafkaPrincipal, renewers: Sequence[KafkaPrincipal], lifetime_ms: int
    ) -> IssuedToken | Refusal:
        """Creates a token. A positive `lifetime_ms` limits its life, renewals included.

        Refusals: DELEGATION_TOKEN_AUTH_DISABLED, INVALID_REQUEST, POLICY_VIOLATION for too many tokens, and those of
        `decide_and_commit`.
        """
        secret, random, now_ms = self._secret, self.broker.random, self.broker.clock.wall_ms()
        if secret is None:
            return DISABLED
        ends_ms = later(now_ms, self._limited(lifetime_ms, "delegation.token.max.lifetime.ms"))
        token_id = new_token_id(random)
        token = TokenRecord(
            token_id=token_id,
            owner=str(owner),
            requester=str(requester),
            renewers=tuple(dict.fromkeys(map(str, renewers))),
            issued_ms=now_ms,
            expires_ms=min(ends_ms, later(now_ms, self._limited(0, PERIOD))),
            ends_ms=ends_ms,
            credentials={},
        )
        refusal = check_names(token)
        if refusal is not None:
            return refusal
        issued_hmac = secret.hmac_of(token_id)
        salts = [
            (mechanism, random.getrandbits(8 * SALT_BYTES).to_bytes(SALT_BYTES, "big")) for mechanism in ScramMechanism
        ]
        made = await done_by(self.broker.worker, lambda: credentials_of(issued_hmac, salts))
        records = {
            each.text: ScramRecord(found.salt, found.stored_key, found.server_key, found.iterations)
            for each, found in made.items()
        }
        token = msgspec.structs.replace(token, credentials=records)
        key = keys.token(issued_hmac)

        def decide() -> _TokenPlan | Refusal:
            planned = plan_new_token(self.broker.metadata.image, key, token)
            return planned if isinstance(planned, Refusal) else _TokenPlan(planned)

        outcome = await self._carry_out(decide)
        return outcome if isinstance(outcome, Refusal) else IssuedToken(token, issued_hmac)

    async def renew(self, principal: KafkaPrincipal, given_hmac: bytes, period_ms: int) -> int | Refusal:
        """Renews a token for a positive period, or for the longest one. Returns the new expiry time.

        Refusals: DELEGATION_TOKEN_AUTH_DISABLED, _NOT_FOUND, _EXPIRED, _OWNER_MISMATCH, and those of
        `decide_and_commit`.
        """

        def decide() -> _TokenPlan | Refusal:
            now_ms, found = self.broker.clock.wall_ms(), self._find(given_hmac)
            if isinstance(found, Refusal):
                return found
            if found.token.until_ms <= now_ms:
                return EXPIRED
            if not may_change(found.token, principal):
                return NOT_ITS_OWNER
            expires_ms = min(found.token.ends_ms, later(now_ms, self._limited(period_ms, PERIOD)))
            return _TokenPlan(plan_token_end(keys.token(given_hmac), found, expires_ms), expires_ms)

        outcome = await self._carry_out(decide)
        return outcome if isinstance(outcome, Refusal) else outcome.expires_ms

    async def expire(self, principal: KafkaPrincipal, given_hmac: bytes, period_ms: int) -> int | Refusal:
        """Lets a token expire after a period; a negative one removes it.

        Returns the expiry time. Refusals: as for `renew`.
        """

        def decide() -> _TokenPlan | Refusal:
            now_ms, found, key = self.broker.clock.wall_ms(), self._find(given_hmac), keys.token(given_hmac)
            if isinstance(found, Refusal):
                return found
            if not may_change(found.token, principal):
                return NOT_ITS_OWNER
            if period_ms < 0:
                return _TokenPlan(plan_removed_token(key, found), now_ms)
            if found.token.until_ms <= now_ms:
                return EXPIRED
            expires_ms = min(found.token.ends_ms, later(now_ms, period_ms))
            return _TokenPlan(plan_token_end(key, found, expires_ms), expires_ms)

        outcome = await self._carry_out(decide)
        return outcome if isinstance(outcome, Refusal) else outcome.expires_ms

    async def find(
        self, asker: KafkaPrincipal, owners: Sequence[str] | None, may_see: Callable[[TokenRecord], bool]
    ) -> list[IssuedToken] | Refusal:
        """Returns the tokens that a principal may see (`is_shown`).

        Tokens made with another secret are left out, because no client can log in with them.
        """
        secret, found = self._secret, list[IssuedToken]()
        if secret is None:
            return DISABLED

        def steps() -> Iterator[None]:
            for index, (key, kept) in enumerate(self.broker.metadata.image.tokens.items(), 1):
                if is_shown(kept.token, asker, owners, may_see):
                    issued_hmac = secret.hmac_of(kept.token.token_id)
                    if keys.token(issued_hmac) == key:
                        found.append(IssuedToken(kept.token, issued_hmac))
                if index % _STEP_TOKENS == 0:
                    yield

        await self.broker.turns.walk(steps())
        return found

    def _limited(self, wanted_ms: int, key: str) -> int:
        """Returns the wanted period if it is positive, limited to the value of a key."""
        allowed_ms = number(self.broker.config.values[key])
        return min(allowed_ms, wanted_ms) if wanted_ms > 0 else allowed_ms

    def _find(self, given_hmac: bytes) -> TokenImage | Refusal:
        """Finds a token by its HMAC. Refusals: DELEGATION_TOKEN_AUTH_DISABLED, _NOT_FOUND."""
        if self._secret is None:
            return DISABLED
        found = self.broker.metadata.image.tokens.get(keys.token(given_hmac))
        if found is None or not hmac.compare_digest(self._secret.hmac_of(found.token.token_id), given_hmac):
            return NOT_FOUND
        return found

    async def _carry_out(self, decide: Callable[[], _TokenPlan | Refusal]) -> _TokenPlan | Refusal:
        metadata = self.broker.metadata
        outcome = await decide_and_commit(metadata, decide, asyncio.get_running_loop().time() + TIMEOUT_S)
        if not isinstance(outcome, Refusal):
            await self._spread.reach_all(metadata.image.revision, WHAT)
        return outcome


def new_token_id(random: Random) -> str:
    """Returns a random id of 128 bits in Kafka's form.

    As in Kafka's `Uuid`, none begins with `-`, which commands would take for an option.
    """
    while True:
        token_id = topic_id_text(random.getrandbits(_ID_BITS).to_bytes(_ID_BITS // 8, "big"))
        if not token_id.startswith("-"):
            return token_id


class TokenSweep:
    """Looks for expired tokens every `delegation.token.expiry.check.interval.ms`."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._interval_ms = number(broker.config.values["delegation.token.expiry.check.interval.ms"])
        self._next_ms = broker.clock.monotonic_ms() + self._interval_ms
        self._runs = False

    def on_tick(self) -> None:
        """Starts a sweep if it is due and this broker is the controller."""
        now_ms, metadata = self._broker.clock.monotonic_ms(), self._broker.metadata
        if now_ms < self._next_ms or self._runs:
            return
        self._next_ms = now_ms + self._interval_ms
        if metadata.image.controller_id == metadata.broker_id and not self._decide().is_empty:
            self._runs = True
            self._broker.tasks.spawn(self._sweep(), name="token sweep")

    async def _sweep(self) -> None:
        try:
            while True:
                deadline = asyncio.get_running_loop().time() + TIMEOUT_S
                outcome = await decide_and_commit(self._broker.metadata, self._decide, deadline)
                if isinstance(outcome, Refusal) or outcome.is_empty:
                    return
                self._broker.log.info("delegation tokens have expired", count=len(outcome.steps[0].operations))
        finally:
            self._runs = False

    def _decide(self) -> ChangePlan:
        return plan_sweep_of_tokens(self._broker.metadata.image, self._broker.clock.wall_ms())
