"""Applications of Kafka Streams (`java/Streaming.java`), their deterministic input, and their expected results."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from .members import Member
from .tools import JavaClient
from .topics import PARTITIONS, Topics

EACH_PROTOCOL = pytest.mark.parametrize("protocol", ["classic", "streams"])
"""For tests that `group.protocol` must not matter to."""

QUICK_STREAMS = {
    "group_streams_initial_rebalance_delay_ms": "0",
    "group_streams_min_session_timeout_ms": "6000",
    "group_streams_session_timeout_ms": "6000",
    "group_streams_min_heartbeat_interval_ms": "300",
    "group_streams_heartbeat_interval_ms": "300",
}
"""Settings of a broker that quickly detects joins and failures of streams groups' members."""

WORDS = ("ebb", "flood", "tide", "neap", "spring", "surge")
REGIONS = ("north", "south", "east")
CUSTOMERS = 20


class Application:
    """An application: its topics, and its instances. `replicas` is that of all its topics."""

    def __init__(self, topics: Topics, java: JavaClient, folder: Path, name: str, *, replicas: int = 1) -> None:
        self.topics = topics
        self.group = name
        self._java = java
        self._folder = folder
        self._replicas = replicas
        self._instances = 0

    def start_as(self, program: str, protocol: str, **given: str) -> Member:
        """Starts one more instance, with a state directory of its own."""
        self._instances += 1
        directory = str(self._folder / f"{self.group}-{self._instances}")
        more = {"group": self.group, "protocol": protocol, "directory": directory, "replicas": str(self._replicas)}
        return Member(self._java.command(program, **more, **given))

    def make(self, *names: str) -> None:
        """Creates topics with the group's name in front."""
        self.topics.make(*(self.topic(name) for name in names), replicas=self._replicas)

    def topic(self, name: str) -> str:
        """Returns the full name of one of its topics, or of one that Streams creates."""
        return f"{self.group}-{name}"


class WordCount(Application):
    """Counts words. All partitions have the same lines."""

    written = 0
    """Lines of each partition."""

    def start(self, protocol: str, **given: str) -> Member:
        """Starts one more instance."""
        return self.start_as("word-count", protocol, topic=self.topic("lines"), out=self.topic("counts"), **given)

    def write(self, lines: int) -> None:
        """Writes lines with all words to each partition."""
        self.topics.write(self.topic("lines"), {number: [" ".join(WORDS)] * lines for number in range(PARTITIONS)})
        self.written += lines

    @property
    def total(self) -> int:
        """The number of counts in the result."""
        return self.written * PARTITIONS * len(WORDS)

    def is_complete(self) -> bool:
        """Returns whether all input has been counted at least once."""
        return len(self.topics.read_committed(self.topic("counts"))) >= self.total

    def check(self) -> None:
        """Each word's count rises by one from one to the end. Errors: AssertionError."""
        read = self.topics.read_committed(self.topic("counts"))
        counts = list(range(1, self.written * PARTITIONS + 1))
        assert {word: [int(count) for key, count in read if key == word] for word in WORDS} == dict.fromkeys(
            WORDS, counts
        )


class Join(Application):
    """Joins orders with the regions of customers, and sums them up by region."""

    written = 0
    """Orders."""

    def make_all(self) -> None:
        """Creates its topics, and writes the customers."""
        self.make("orders", "customers", "joined", "totals")
        self.topics.write_keyed(
            self.topic("customers"), ((f"c{number}", self.region(number)) for number in range(CUSTOMERS))
        )

    def start(self, protocol: str, **given: str) -> Member:
        """Starts one more instance."""
        names = {"topic": "orders", "table": "customers", "out": "joined", "sums": "totals"}
        return self.start_as("join", protocol, **{key: self.topic(name) for key, name in names.items()}, **given)

    def write(self, orders: int) -> None:
        """Writes more orders."""
        numbers = range(self.written, self.written + orders)
        rows = ((f"o{number}", f"c{self.customer(number)} {self.amount(number)}") for number in numbers)
        self.topics.write_keyed(self.topic("orders"), rows)
        self.written += orders

    def is_complete(self) -> bool:
        """Returns whether each order has been summed up at least once."""
        return len(self.topics.read_committed(self.topic("totals"))) >= self.written

    def check(self) -> None:
        """Each order is joined once and summed up once. Errors: AssertionError."""
        orders = [(number, self.customer(number)) for number in range(self.written)]
        joined = [(f"c{who}", f"o{number} {self.region(who)} {self.amount(number)}") for number, who in orders]
        assert Counter(self.topics.read_committed(self.topic("joined"))) == Counter(joined)
        totals = self.topics.read_committed(self.topic("totals"))
        for region in REGIONS:
            sums = [0, *(int(total) for key, total in totals if key == region)]
            amounts = [self.amount(number) for number, who in orders if self.region(who) == region]
            assert sorted(after - before for before, after in pairwise(sums)) == sorted(amounts), region

    @staticmethod
    def customer(order: int) -> int:
        """Returns the customer of an order."""
        return order * 7 % CUSTOMERS

    @staticmethod
    def amount(order: int) -> int:
        """Returns the amount of an order."""
        return order % 11 + 1

    @staticmethod
    def region(customer: int) -> str:
        """Returns the region of a customer."""
        return REGIONS[customer % len(REGIONS)]


def tasks_of(member: Member, kind: str = "active") -> set[str]:
    """Returns the tasks of an instance, such as `1_0`; none before it has told them."""
    told = member.said("tasks")
    return set(told[-1][kind]) if told else set()
