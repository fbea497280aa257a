"""How long requests take, by API: the parts that Kafka tells apart, and all of them together.

| part | from | to |
|---|---|---|
| queue | the request is there | it is executed: other connections have their turn, or this one is muted |
| local | it is executed | it is answered, or waits |
| remote | it waits: for followers, records, members, the disk, the metadata store | its answer is there |
| response queue | its answer is there | those before it on its connection are there too |
| send | its answer is given to the socket | the socket has taken it |

Most requests are answered in the callback that brought them. Such a *quick* one takes one step of one histogram, which
counts for the local time and for the total; the connection does that by itself (`Connection._on_request`). Nearly all
answers are taken by the socket at once: these count as sent in no time, and only those are measured that it doesn't
take, the oldest of a connection at a time. What comes before a request is there is not seen here: that is the lateness
of the loop.

Buckets are powers of two of a nanosecond: the place of a count is the bit length of the time.
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
    """The times of one API's requests: histograms, by bit length.

    At `n` they count times below 2^n ns, and not below 2^(n - 1).
    """

    __slots__ = ("local", "name", "queue", "quick", "quick_ns", "remote", "response_queue", "send", "total", "total_ns")

    def __init__(self, name: str) -> None:
        self.name = name
        self.quick = [0] * BUCKETS
        """The local time of quick requests, which is their total time too."""
        self.quick_ns = 0
        """Their sum."""
        self.local = [0] * BUCKETS
        """Of requests that waited, as are the next three."""
        self.remote = [0] * BUCKETS
        self.response_queue = [0] * BUCKETS
        self.total = [0] * BUCKETS
        """Without the queue."""
        self.total_ns = 0
        self.queue = [0] * BUCKETS
        """Of requests that didn't begin at once, as the next is of answers that weren't taken at once."""
        self.send = [0] * BUCKETS

    @property
    def count(self) -> int:
        """Requests that were answered."""
        return sum(self.quick) + sum(self.total)


class RequestTimes:
    """The times of all APIs that were asked for, and the logins before."""

    def __init__(self) -> None:
        self.by_name: dict[str, ApiTimes] = {}
        self.logins: Counter[tuple[str, str]] = Counter()
        """Logins by listener and outcome, since the start."""

    def of(self, key: ApiKey) -> ApiTimes:
        """Those of an API; of Fetch those of consumers."""
        return self._named(FETCH_CONSUMER if key == ApiKey.FETCH else API[key].request.__name__.removesuffix("Request"))

    def of_followers(self, key: ApiKey) -> ApiTimes:
        """Those of an API when a follower asks."""
        return self._named(FETCH_FOLLOWER) if key == ApiKey.FETCH else self.of(key)

    def _named(self, name: str) -> ApiTimes:
        return self.by_name.setdefault(name, ApiTimes(name))


class RequestClock:
    """What all connections of a broker know of the time while a callback runs.

    Its fields are set by the connection that is served.
    """

    __slots__ = ("moment_ns", "now_ms", "now_ns", "times")

    def __init__(self, clock: Clock) -> None:
        self.now_ms: Callable[[], int] = clock.monotonic_ms
        self.now_ns: Callable[[], int] = clock.monotonic_ns
        self.moment_ns = 0
        """When the request that is next was received, or the one before it was done."""
        self.times = ApiTimes("")
        """Of the request that was answered last."""
