"""Subscriptions to clients' metrics (KIP-714): their keys, what is allowed, and which clients one means.

Decisions only. A client's metrics are wanted by every subscription whose patterns all match it; patterns are RE2's,
compiled when the subscription changes. Source: Kafka's `ClientMetricsConfigs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from lowtide.protocol.errors import ErrorCode
from lowtide.replication.refusal import Refusal

METRICS: Final = "metrics"
INTERVAL: Final = "interval.ms"
MATCH: Final = "match"
DEFAULTS: Final[Mapping[str, str]] = {INTERVAL: "300000", MATCH: "", METRICS: ""}
KEYS: Final[Mapping[str, str]] = {
    INTERVAL: "How often a client pushes its metrics.",
    MATCH: "Which clients are meant: pairs of a fact and a pattern, all of which must match; without any all clients.",
    METRICS: "With what the names of the metrics begin; * for all.",
}
"""What each key is for."""

LISTS: Final = frozenset({MATCH, METRICS})
INTERVAL_MS_DEFAULT: Final = 300_000
INTERVAL_MS_MIN: Final = 100
INTERVAL_MS_MAX: Final = 3_600_000
ALL_METRICS: Final = "*"

TEXT_MAX: Final = 16_384
"""Characters of a key's value; Kafka has no limit."""

CLIENT_FACTS: Final = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
"""What patterns may be about."""

PATTERN_MEMORY: Final = 1 << 20


class Subscription(msgspec.Struct, frozen=True):
    """One subscription; the patterns are by the facts that they are about."""

    metrics: tuple[str, ...]
    interval_ms: int
    patterns: Mapping[str, Any]

    def means(self, client: Mapping[str, str]) -> bool:
        """Whether each pattern matches the whole of what it is about."""
        return all(pattern.fullmatch(client.get(fact, "")) is not None for fact, pattern in self.patterns.items())


def validate_client_metrics(name: str, wanted: Mapping[str, str]) -> Refusal | None:
    """Check what is to be set on a subscription.

    Refusals: INVALID_REQUEST without a name, for a key that is none and an interval out of range; INVALID_CONFIG for
    patterns.
    """
    if not name:
        return Refusal(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    for key, text in wanted.items():
        if key not in DEFAULTS:
            return Refusal(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {key}")
        if len(text) > TEXT_MAX:
            return Refusal(ErrorCode.INVALID_CONFIG, f"{key} has {len(text)} characters: allowed are up to {TEXT_MAX}")
    parsed = subscription_of(wanted)
    return parsed if isinstance(parsed, Refusal) else None


def subscription_of(configs: Mapping[str, str]) -> Subscription | Refusal:
    """A subscription from its keys. Refusals: as `validate_client_metrics`."""
    text = configs.get(INTERVAL, DEFAULTS[INTERVAL]).strip()
    interval_ms = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(INTERVAL_MS_MAX)) else -1
    if not INTERVAL_MS_MIN <= interval_ms <= INTERVAL_MS_MAX:
        message = f"Invalid value {text} for {INTERVAL}, interval must be between {INTERVAL_MS_MIN} and {INTERVAL_MS_MAX} (1 hour)"
        return Refusal(ErrorCode.INVALID_REQUEST, message)
    patterns: dict[str, Any] = {}
    for part in _members(configs.get(MATCH, "")):
        fact, equals, pattern = (each.strip() for each in part.partition("="))
        if not equals or fact not in CLIENT_FACTS or not pattern:
            return Refusal(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {part}")
        compiled = _compiled(pattern)
        if compiled is None:
            return Refusal(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {part}")
        patterns[fact] = compiled
    return Subscription(tuple(_members(configs.get(METRICS, ""))), interval_ms, patterns)


def _members(text: str) -> list[str]:
    return [member.strip() for member in text.split(",") if member.strip()]


def _compiled(pattern: str) -> Any:
    """A pattern that takes time in proportion to what it is matched with; None for one that is none."""
    import re2  # noqa: PLC0415 - 8 ms and 3 MB, and hardly any broker needs it.

    options = re2.Options()
    options.max_mem = PATTERN_MEMORY
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options=options)
    except re2.error:
        return None
    re2.purge()  # The module would keep the last 128 patterns.
    return compiled
