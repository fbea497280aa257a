"""Verifies the OAUTHBEARER tokens of one listener with the issuer's public keys, which are refreshed periodically.

A verification needs no I/O and takes less than half a millisecond of the event loop. Keys are fetched in the
background: at the start, before OAUTHBEARER is enabled at runtime, each `sasl.oauthbearer.jwks.endpoint.refresh.ms`,
and when a token is signed with an unknown key; that token is refused. A failed fetch changes nothing and is retried.
Without keys every token is refused.

A broker starts even if its endpoint is unreachable (Kafka's does not), because replication must not depend on a token
issuer. An unreadable file stops the start.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from lowtide.broker.config.oauth_settings import KeySource, OAuthSettings
from lowtide.broker.lifecycle.broker_base import BrokerBase
from lowtide.broker.security.exchange import LoginFailure
from lowtide.broker.security.jwt_claims import TokenHolder, check_claims, unchecked
from lowtide.broker.security.jwt_keys import KeySetError, TokenKeys, UnknownKey, UnknownKeys, read_key_set
from lowtide.broker.security.oauth_bearer import OAuthBearerExchange
from lowtide.protocol.client.retries import Backoff
from lowtide.runtime.beside_serving import read_file
from lowtide.runtime.clock import Clock
from lowtide.runtime.https import fetch, reason_of, request_bytes
from lowtide.runtime.tls import TlsError, client_context

KEY_SET_BYTES_MAX: Final = 512 * 1024
"""Design limit: a set has a few kilobytes."""

FETCH_TIMEOUT_MS: Final = 10_000
"""The limit of one fetch, from connecting to the last byte."""

FETCH_INTERVAL_MS_MIN: Final = 1_000
"""The minimum time between a fetch and the next one that a token causes."""

NO_KEYS: Final = TokenKeys(())


class TokenVerifier:
    """The tokens of one listener. Call `load` once if something depends on it; then `run` in the background."""

    def __init__(self, listener_name: str, settings: OAuthSettings, clock: Clock, log: Any) -> None:
        self.settings = settings
        self.failure = ""
        """Why the last fetch failed; empty if it succeeded."""
        self._name = listener_name
        self._clock = clock
        self._log = log
        self._keys = NO_KEYS
        self._unknown = UnknownKeys()
        self._wanted = asyncio.Event()
        """Set when a token is signed with an unknown key."""

    def check(self, token: str) -> TokenHolder | LoginFailure:
        """Returns the holder of a token, or why it is refused."""
        keys = self._keys
        if not keys:
            return LoginFailure("the keys of its issuer are not available yet")
        verified = keys.verify(token)
        if isinstance(verified, UnknownKey):
            if self._unknown.is_reason(verified.key_id, self._clock.monotonic_ms()):
                self._wanted.set()
            return LoginFailure("it is signed with a key that its issuer does not publish")
        if isinstance(verified, LoginFailure):
            return verified
        return check_claims(verified, self.settings.rules, self._clock.wall_ms())

    def begin(self) -> OAuthBearerExchange:
        return OAuthBearerExchange(self.check, self._clock.wall_ms)

    async def load(self) -> None:
        """Fetches the keys before the listener opens. Errors: OSError for an unusable file."""
        await self._fetch()
        if self.failure and self.settings.keys.url.is_file:
            raise OSError(self.no_keys)

    @property
    def no_keys(self) -> str:
        """The sentence about the failed fetch."""
        return f"the listener {self._name} has no keys to verify tokens by: {self.settings.keys.text}: {self.failure}"

    async def run(self) -> None:
        """Fetches the keys when they are due, until cancelled; at once if they were not loaded."""
        source = self.settings.keys
        if not self._keys and not self.failure:
            await self._fetch()
        backoff, failures = Backoff(source.retry_backoff_ms, source.retry_backoff_ms_max), 0
        while True:
            failures = failures + 1 if self.failure else 0
            await self._until_due(backoff.rest_ms(failures) if failures else source.refresh_ms)
            await self._fetch()

    async def _until_due(self, rest_ms: int) -> None:
        """Returns after `rest_ms`, or earlier if a token needs an unknown key."""
        until_ms = self._clock.monotonic_ms() + min(rest_ms, FETCH_INTERVAL_MS_MIN)
        try:
            async with asyncio.timeout(rest_ms / 1000):
                await self._wanted.wait()
        except TimeoutError:
            return
        await asyncio.sleep(max(until_ms - self._clock.monotonic_ms(), 0) / 1000)
        self._wanted.clear()

    async def _fetch(self) -> None:
        """Fetches the keys; the previous ones stay if that fails."""
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_MS / 1000):
                keys = read_key_set(await _content(self.settings.keys))
        except TimeoutError:
            self._on_failed(f"no answer within {FETCH_TIMEOUT_MS} ms")
        except (KeySetError, TlsError) as error:
            self._on_failed(str(error))
        except OSError as error:
            self._on_failed(reason_of(error))
        else:
            if self.failure or keys.ids != self._keys.ids or not self._keys:
                self._log.info(
                    "token keys are in use", listener=self._name, url=self.settings.keys.text, keys=len(keys)
                )
            self._keys, self.failure = keys, ""
            self._unknown.forget(keys.ids)

    def _on_failed(self, reason: str) -> None:
        if reason != self.failure:
            consequence = "the previous ones stay in use" if self._keys else "all tokens are refused"
            url = self.settings.keys.text
            self._log.warning(
                f"token keys cannot be fetched, {consequence}", listener=self._name, url=url, reason=reason
            )
        self.failure = reason


def token_verifier(listener_name: str, settings: OAuthSettings, base: BrokerBase) -> TokenVerifier:
    """Creates the verifier of a listener, without keys yet."""
    unset = [f"sasl.oauthbearer.expected.{name}" for name in unchecked(settings.rules)]
    if unset:
        consequence = "tokens that the issuer signed for others are accepted"
        base.log.warning("token claims are not checked", listener=listener_name, unset=unset, consequence=consequence)
    return TokenVerifier(listener_name, settings, base.ports.clock, base.log)


async def _content(source: KeySource) -> bytes:
    """Returns the key set. Errors: OSError, TlsError, KeySetError."""
    if source.url.is_file:
        content = await read_file(source.url.target, KEY_SET_BYTES_MAX + 1)
        if len(content) > KEY_SET_BYTES_MAX:
            raise KeySetError(f"it has more than {KEY_SET_BYTES_MAX} bytes")
        return content
    tls = client_context(source.tls) if source.url.scheme == "https" else None
    return await fetch(source.url, tls, request_bytes(source.url), bytes_max=KEY_SET_BYTES_MAX)
