"""Money moved between accounts, exactly once, while brokers, coordinators and clients are killed: no order is lost or
executed twice.

Orders are read, executed and marked as done in one transaction (`transfer_programs.py`). Committed records are read by
an auditor all the time, and checked: no record is read twice, no aborted one is read; and at the end each order has its
two entries, once, so that the sum of all accounts is unchanged.

`SECONDS_OF_TRANSFER=600` for a long run, `SEED=n` for other faults.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.etcd import missing

from .broker_faults import GROUP_KEY, TRANSACTION_KEY, BrokerFaults
from .client_processes import ClientProcess, Keeper
from .cluster_processes import ClusterProcesses
from .transfer_programs import CALL_S, ENTRIES, GROUP, ORDERS, ORDERS_AT_ONCE, PARTITIONS

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

SECONDS = float(os.environ.get("SECONDS_OF_TRANSFER", "6"))
SEED = int(os.environ.get("SEED", "7"))
MOVERS = ("mover-1", "mover-2")
CLIENTS = ("orders", *MOVERS, "auditor")
ENOUGH = 100_000
"""More transactions of orders than any process completes."""

SETTLE_S = 90.0
SETTINGS = (
    "group.initial.rebalance.delay.ms=0",
    "group.min.session.timeout.ms=1000",
    "offsets.topic.num.partitions=1",
    "transaction.state.log.num.partitions=1",
)


class Ledger:
    """The clients' reports, and whether they are possible."""

    def __init__(self) -> None:
        self.begun: set[int] = set()
        self.never: set[int] = set()
        """Orders whose transaction must be aborted."""
        self.ordered: set[int] = set()
        self.orders: dict[int, dict[str, int]] = {}
        self.entries: dict[tuple[int, int], int] = {}
        """Order and account → amount."""
        self.next = {(topic, number): 0 for topic in (ORDERS, ENTRIES) for number in range(PARTITIONS)}
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []

    def on_orders(self, told: dict[str, list[int]]) -> None:
        for what, numbers in told.items():
            getattr(self, what).update(numbers)

    def on_mover(self, told: dict[str, Any]) -> None:
        self.counts[next(iter(told))] += 1

    def on_read(self, told: list[tuple[str, int, int, dict[str, int]]]) -> None:
        for topic, partition, offset, value in told:
            if offset < self.next[topic, partition]:
                self.faults.append(
                    f"{topic}-{partition} was read to {self.next[topic, partition]}, and then came {offset}"
                )
            self.next[topic, partition] = offset + 1
            if topic == ORDERS:
                self._on_order(value)
            else:
                self._on_entry(value)

    def _on_order(self, order: dict[str, int]) -> None:
        if order["order"] in self.orders:
            self.faults.append(f"{order} was read twice")
        if order["order"] in self.never:
            self.faults.append(f"{order} was aborted")
        self.orders[order["order"]] = order

    def _on_entry(self, entry: dict[str, int]) -> None:
        key = entry["order"], entry["account"]
        if key in self.entries:
            self.faults.append(f"{entry} is there twice")
        self.entries[key] = entry["amount"]

    @property
    def is_settled(self) -> bool:
        """Whether all acknowledged orders are read, and all read orders are executed."""
        return self.ordered <= self.orders.keys() and len(self.entries) >= 2 * len(self.orders)

    @property
    def missing(self) -> str:
        """The orders that `is_settled` waits for."""
        unread = sorted(self.ordered - self.orders.keys())
        moved = {order for order, _ in self.entries}
        return f"not read {unread}, not moved {sorted(self.orders.keys() - moved)}, the auditor's offsets {self.next}"

    def check(self) -> None:
        """Checks the settled state: each order was executed once, and nothing else."""
        wanted = {(order["order"], order["from"]): -order["amount"] for order in self.orders.values()}
        wanted |= {(order["order"], order["to"]): order["amount"] for order in self.orders.values()}
        assert self.faults == []
        assert self.ordered <= self.orders.keys() <= self.begun
        assert self.entries == wanted
        assert sum(self.entries.values()) == 0


def cluster_state(bootstrap: str) -> str:
    """Returns where the logs end, for readers of committed records too, and the group's offsets."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "broker.address.family": "v4"})
    places = [TopicPartition(topic, number) for topic in (ORDERS, ENTRIES) for number in range(PARTITIONS)]
    found = []
    for isolation in IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED:
        asked = admin.list_offsets(
            {place: OffsetSpec.latest() for place in places}, isolation_level=isolation, request_timeout=CALL_S
        )
        found.append(
            f"{isolation.name}: {[(place.topic, place.partition, _outcome(future)) for place, future in asked.items()]}"
        )
    found += [
        f"group: {_outcome(future)}"
        for future in admin.describe_consumer_groups([GROUP], request_timeout=CALL_S).values()
    ]
    offsets = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(GROUP)], request_timeout=CALL_S)
    return "\n".join([*found, *(f"offsets: {_outcome(future)}" for future in offsets.values())])


def _outcome(future: Any) -> str:
    try:
        result = future.result(CALL_S)
    except Exception as error:
        return repr(error)
    if hasattr(result, "members"):
        members = [
            (member.client_id, member.assignment and member.assignment.topic_partitions) for member in result.members
        ]
        return f"{result.state} {members}"
    return str(result.topic_partitions if hasattr(result, "topic_partitions") else getattr(result, "offset", result))


class Bank:
    """The programs, and the faults of programs and brokers."""

    def __init__(self, cluster: ClusterProcesses) -> None:
        self.cluster = cluster
        self.ledger = Ledger()
        self.random = random.Random(SEED)
        self.faults = BrokerFaults(cluster, self.random)
        self.clients = Keeper(self.program)
        self._lives = 0

    def program(self, name: str, transactions: int = ENOUGH) -> ClientProcess:
        told: Callable[[Any], None]
        given: dict[str, Any] = {"bootstrap": self.cluster.bootstrap}
        if name == "orders":
            self._lives += 1
            given |= {"program": "orders", "first": self._lives * ENOUGH * ORDERS_AT_ONCE, "transactions": transactions}
            told = self.ledger.on_orders
        elif name == "auditor":
            given |= {
                "program": "auditor",
                "positions": [(*place, offset) for place, offset in self.ledger.next.items()],
            }
            told = self.ledger.on_read
        else:
            given |= {"program": "mover", "name": name}
            told = self.ledger.on_mover
        return ClientProcess("tests.chaos.transfer_programs", given, told)

    async def strike(self, what: str) -> None:
        """Injects one fault of `FAULTS`."""
        if what in CLIENTS:
            await self.clients.kill(what)
        elif what == "group":
            await self.faults.kill_coordinator(GROUP_KEY, GROUP)
        elif what == "transactions":
            await self.faults.kill_coordinator(TRANSACTION_KEY, MOVERS[0])
        elif what == "freeze":
            await self.faults.freeze_coordinator(TRANSACTION_KEY, MOVERS[0])
        elif what == "all":
            await self.faults.kill_all()
        else:
            await self.faults.kill_any()

    async def until(self, what: str, condition: Callable[..., bool]) -> None:
        """Waits for the condition."""
        try:
            async with asyncio.timeout(SETTLE_S):
                while not condition():
                    assert self.ledger.faults == []
                    await asyncio.sleep(0.05)
        except TimeoutError:
            summary = (
                f"{what} did not happen: {dict(self.ledger.counts)} {dict(self.clients.returns)}\n{self.ledger.missing}"
            )
            state = await asyncio.to_thread(cluster_state, self.cluster.bootstrap)
            raise AssertionError(f"{summary}\n{state}\n{self.clients.noise}\n{self.cluster.tail()}") from None

    async def settle(self) -> None:
        """Injects no more faults, sends a last order, and waits until all orders are executed."""
        await self.faults.all_back()
        await self.clients.rest()
        await self.clients.kill("orders")
        last = self.clients.clients["orders"] = self.program("orders", transactions=1)
        await last.start()
        self.clients.keep(*MOVERS, "auditor")
        await self.until("the last order", lambda: not last.is_running)
        assert await last.terminate() == 0, last.noise
        await self.until("the settlement", lambda: self.ledger.is_settled)

    async def close(self) -> None:
        self.faults.close()
        await self.clients.close()


FIRST = ("mover-1", "orders", "transactions", "auditor", "group", "mover-2")
FAULTS = (*FIRST, "any", "freeze", "all")


@pytest.mark.seeds
async def test_no_order_is_lost_or_carried_out_twice(tmp_path: Path) -> None:
    async with ClusterProcesses(tmp_path, *SETTINGS) as cluster:
        for topic in (ORDERS, ENTRIES):
            await cluster.create_topic(topic, partitions=PARTITIONS)
        bank = Bank(cluster)
        try:
            bank.clients.keep(*CLIENTS)
            await bank.until("the first transfer", lambda: bank.ledger.counts["moved"] > 0)
            end, due = time.monotonic() + SECONDS, [*FIRST]
            while time.monotonic() < end or due:
                await bank.strike(due.pop(0) if due else bank.random.choice(FAULTS))
                await asyncio.sleep(
                    bank.random.uniform(0, 2) * min(SECONDS, 12) / len(FIRST) * (time.monotonic() < end)
                )
                assert bank.ledger.faults == []
            await bank.settle()
        finally:
            await bank.close()
        bank.ledger.check()
        cluster.check_no_faults()
        assert len(bank.ledger.orders) > 2 * ORDERS_AT_ONCE, "hardly anything happened"
    print(
        f"{len(bank.ledger.orders)} orders; {dict(bank.ledger.counts)}; {dict(bank.clients.returns)}; "
        f"{dict(bank.faults.counts)}"
    )
