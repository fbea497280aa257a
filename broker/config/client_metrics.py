"""Subscriptions to clients' metrics (KIP-714): keys, allowed values, and which clients match.

Decisions only. A subscription applies to a client if all its patterns match. Patterns use RE2 syntax and are compiled
when the subscription changes. Source: Kafka's `ClientMetricsConfigs`.
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
    INTERVAL: "The interval at which a client pushes its metrics.",
    MATCH: "Pairs of a client attribute and a pattern, which must all match; empty matches all clients.",
    METRICS: "Prefixes of the metric names to collect; * collects all.",
}

LISTS: Final = frozenset({MATCH, METRICS})
INTERVAL_MS_DEFAULT: Final = 300_000
INTERVAL_MS_MIN: Final = 100
INTERVAL_MS_MAX: Final = 3_600_000
ALL_METRICS: Final = "*"

TEXT_MAX: Final = 16_384
"""The maximum length of a key's value in characters; Kafka has no limit."""

CLIENT_FACTS: Final = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
"""The client attributes that patterns can match."""

PATTERN_MEMORY: Final = 1 << 20


class MetricsSubscription(msgspec.Struct, frozen=True):
    """One subscription; patterns are keyed by client attribute."""

    metrics: tuple[str, ...]
    interval_ms: int
    patterns: Mapping[str, Any]

    def means(self, client: Mapping[str, str]) -> bool:
        """Returns whether each pattern matches the whole value of its attribute."""
        return all(pattern.fullmatch(client.get(fact, "")) is not None for fact, pattern in self.patterns.items())


def validate_client_metrics(name: str, wanted: Mapping[str, str]) -> Refusal | None:
    """Checks the configuration of a subscription.

    Refusals: INVALID_REQUEST for an empty name, an unknown key or an interval out of range; INVALID_CONFIG for an
    invalid pattern.
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


def subscription_of(configs: Mapping[str, str]) -> MetricsSubscription | Refusal:
    """Parses a subscription. Refusals: as `validate_client_metrics`."""
    text = configs.get(INTERVAL, DEFAULTS[INTERVAL]).strip()
    interval_ms = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(INTERVAL_MS_MAX)) else -1
    if not INTERVAL_MS_MIN <= interval_ms <= INTERVAL_MS_MAX:
        message = (
            f"Invalid value {text} for {INTERVAL}, interval must be between {INTERVAL_MS_MIN} and {INTERVAL_MS_MAX} (1 "
            "hour)"
        )
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
    return MetricsSubscription(tuple(_members(configs.get(METRICS, ""))), interval_ms, patterns)


def _members(text: str) -> list[str]:
    return [member.strip() for member in text.split(",") if member.strip()]


def _compiled(pattern: str) -> Any:
    """Compiles a pattern that matches in linear time; returns None if it is invalid."""
    import re2  # noqa: PLC0415 - 8 ms and 3 MB, and rarely needed

    options = re2.Options()
    options.max_mem = PATTERN_MEMORY
    options.log_errors = False
    try:
        compiled = re2.compile(pattern, options=options)
    except re2.error:
        return None
    re2.purge()  # The module would keep the last 128 patterns.
    return compiled
