"""What a broker's keys about following must say together: a follower that waits longer than its leader has patience would come and go.

Source: Kafka's KafkaConfig has the comparisons; that the numbers aren't negative is ours, for Kafka's brokers would fail with each request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lowtide.broker.config.key import ImpossibleTogetherError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowtide.broker.config.key import Value

_WAIT: Final = "replica.fetch.wait.max.ms"
_NOT_NEGATIVE: Final = ("replica.fetch.min.bytes", _WAIT)
_AT_LEAST_THE_WAIT: Final = ("replica.lag.time.max.ms", "replica.socket.timeout.ms")


def check_follower_fetches(values: Mapping[str, Value]) -> None:
    """Errors: ImpossibleTogetherError."""
    for name in _NOT_NEGATIVE:
        if _number(values, name) < 0:
            message = f"{name}={_number(values, name)} is not possible: allowed is at least 0"
            raise ImpossibleTogetherError(message, name)
    wait_ms = _number(values, _WAIT)
    for name in _AT_LEAST_THE_WAIT:
        limit_ms = _number(values, name)
        if limit_ms < max(wait_ms, 1):
            message = f"{name}={limit_ms} is not possible: allowed is at least {_WAIT}={wait_ms}, and 1"
            raise ImpossibleTogetherError(message, name, _WAIT)


def _number(values: Mapping[str, Value], name: str) -> int:
    value = values[name]
    assert isinstance(value, int), f"{name} is {value!r}"
    return value
