"""The times of requests by API, in Kafka's parts and in total.

| part | from | to |
|---|---|---|
| queue | the request is received | it is executed: after other connections' turns, or a mute |
| local | it is executed | it is answered, or waits |
| remote | it waits: for followers, records, members, the disk, the metadata store | its answer is complete |
| response queue | its answer is complete | earlier answers of its connection are complete |
| send | its answer is written to the socket | the socket has accepted it |

Most requests are *quick*: answered in the callback that received them. The connection itself counts them, in one
histogram for both the local and the total time. The socket accepts nearly all answers at once, which counts as no time;
otherwise the oldest waiting answer of a connection is measured. Delays before a request is received are not seen here.

The bucket of a time is its bit length in nanoseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from lowtide.protocol.api_keys import API, ApiKey
from lowtide.runtime.clock import Clock

BUCKETS: Final = 64
"""For times below 2^63 ns."""

FETCH_CONSUMER: Final = "FetchConsumer"
FETCH_FOLLOWER: Final = "FetchFollower"


class ApiTimes:
    """The histograms of one API. Bucket `n` counts times from 2^(n - 1) ns up to 2^n ns (exclusive)."""

    __slots__ = ("local", "name", "queue", "quick", "quick_ns", "remote", "response_queue", "send", "total", "total_ns")

    def __init__(self, name: str) -> None:
        self.name = name
        self.quick = [0] * BUCKETS
        """The times of quick requests."""
        self.quick_ns = 0
        self.local = [0] * BUCKETS
        """Of requests that waited, as the next three."""
        self.remote = [0] * BUCKETS
        self.response_queue = [0] * BUCKETS
        self.total = [0] * BUCKETS
        """Without the queue."""
        self.total_ns = 0
        self.queue = [0] * BUCKETS
        """Of requests that were not executed at once."""
        self.send = [0] * BUCKETS
        """Of answers that the socket did not accept at once."""

    @property
    def count(self) -> int:
        """The number of answered requests."""
        return sum(self.quick) + sum(self.total)


class RequestTimes:
    """The times of all requested APIs, and the logins."""

    def __init__(self) -> None:
        self.by_name: dict[str, ApiTimes] = {}
        self.logins: Counter[tuple[str, str]] = Counter()
        """Logins by listener and outcome, since the start."""

    def of(self, key: ApiKey) -> ApiTimes:
        """Returns the times of an API, for Fetch those of consumers."""
        return self._named(FETCH_CONSUMER if key == ApiKey.FETCH else API[key].request.__name__.removesuffix("Request"))

    def of_followers(self, key: ApiKey) -> ApiTimes:
        """Returns the times of an API when followers request it."""
        return self._named(FETCH_FOLLOWER) if key == ApiKey.FETCH else self.of(key)

    def _named(self, name: str) -> ApiTimes:
        return self.by_name.setdefault(name, ApiTimes(name))


class RequestClock:
    """The clock that all connections of a broker share. The connection that runs sets its fields."""

    __slots__ = ("moment_ns", "now_ms", "now_ns", "times")

    def __init__(self, clock: Clock) -> None:
        self.now_ms: Callable[[], int] = clock.monotonic_ms
        self.now_ns: Callable[[], int] = clock.monotonic_ns
        self.moment_ns = 0
        """When the next request was received, or the previous one was done."""
        self.times = ApiTimes("")
        """The times of the API of the last answered request."""
