"""Topics of one partition with erased records in every place, and the offsets that readers must get."""

from __future__ import annotations

from collections.abc import Collection

from confluent_kafka import Producer

from lowtide import BlockingAdminClient, TopicPartition
from lowtide.admin import NewTopic, PartitionErasure

from . import load

GONE, STAYS, LAST = b"gone", b"stays", b"last"
"""Keys: of records that are erased, of others, and of the last record of a topic, written after all reads."""

PER_BATCH = 10
SEGMENT_BYTES = 1 << 20
"""The smallest size that a broker takes."""
UNCOMMITTED, COMMITTED = "read_uncommitted", "read_committed"


class ErasedTopic:
    """Writes a topic, one batch at a time, and knows what readers must get."""

    def __init__(self, bootstrap: str, name: str, codec: str, *, transactional: bool = False) -> None:
        self.name = name
        self.codec = codec
        self.is_open = False
        """Whether its last transaction stays open."""
        self.end = 0
        """The log end offset."""
        self.markers: list[int] = []
        """Where transactions end."""
        self.live: dict[str, list[int]] = {UNCOMMITTED: [], COMMITTED: []}
        self._open: list[int] | None = [] if transactional else None
        self._first_open = 0
        settings: dict[str, object] = {"linger.ms": 1000, "compression.type": codec, "acks": "all"}
        if transactional:
            settings |= {"transactional.id": name, "transaction.timeout.ms": 900_000}
        self.producer = Producer(load.settings(bootstrap, **settings, **{"enable.idempotence": True}))
        if transactional:
            self.producer.init_transactions(load.DEADLINE_S)

    def batch(self, gone: Collection[int] = (), count: int = PER_BATCH, size: int = 20) -> None:
        """Writes a batch, in which the records `gone` will be erased."""
        for number in range(count):
            key = GONE if number in gone else STAYS
            self.producer.produce(self.name, b"%s %06d " % (key, self.end + number) + bytes(size), key, partition=0)
        assert self.producer.flush(load.DEADLINE_S) == 0
        offsets = [self.end + number for number in range(count) if number not in gone]
        self.live[UNCOMMITTED] += offsets
        (self.live[COMMITTED] if self._open is None else self._open).extend(offsets)
        self.end += count

    def begin(self) -> None:
        self._open, self._first_open = [], self.end
        self.producer.begin_transaction()

    def complete(self, *, commits: bool) -> None:
        assert self._open is not None
        if commits:
            self.producer.commit_transaction(load.DEADLINE_S)
            self.live[COMMITTED] += self._open
        else:
            self.producer.abort_transaction(load.DEADLINE_S)
        self._open = []
        self.markers.append(self.end)
        self.end += 1

    def position(self, isolation: str) -> int:
        """Returns the position of a reader at the end."""
        return self._first_open if self.is_open and isolation == COMMITTED else self.end


class ErasedTopics:
    """Makes the topics, and erases the records with the key `GONE`."""

    def __init__(self, bootstrap: str, admin: BlockingAdminClient, *, timeout: float = load.DEADLINE_S) -> None:
        """`timeout` is that of an erasure, which has an effect before the files are rewritten."""
        self._bootstrap = bootstrap
        self._admin = admin
        self._timeout = timeout
        whole = range(PER_BATCH)
        self.topics = [
            self.topic("one-of-a-batch", "zstd", [3], [], [0, 9]),
            self.topic("whole-batches", "none", [], whole, [], whole, whole, []),
            self.topic("at-the-end", "lz4", [], [8, 9]),
            self.topic("the-last-batch", "gzip", [], whole),
            self.topic("everything", "snappy", whole, whole, whole),
            self._ends_of_segments(),
            self._single_records(),
            self._transactions(),
            self._open_transaction(),
        ]
        several = self.topic("several-erasures", "gzip")
        for _ in range(2):
            several.batch([1])
            several.batch(whole)
            self.erase(several)
        several.batch([1])
        self.topics.append(several)
        self.erase(*self.topics)

    def write_last(self) -> None:
        """Writes one more record to each topic."""
        producer = Producer(load.settings(self._bootstrap, acks="all"))
        for topic in self.topics:
            producer.produce(topic.name, b"last", LAST, partition=0)
            topic.live[UNCOMMITTED].append(topic.end)
            if not topic.is_open:
                topic.live[COMMITTED].append(topic.end)
            topic.end += 1
        assert producer.flush(load.DEADLINE_S) == 0

    def _writer(self, name: str, codec: str, *, transactional: bool = False) -> ErasedTopic:
        configs = {"segment.bytes": str(SEGMENT_BYTES)}
        [made] = self._admin.create_topics([NewTopic(name=name, partitions=1, configs=configs)]).values()
        assert not isinstance(made, Exception), made
        return ErasedTopic(self._bootstrap, name, codec, transactional=transactional)

    def erase(self, *topics: ErasedTopic) -> None:
        """Erases the records with the key `GONE`."""
        partitions = [TopicPartition(topic.name, 0) for topic in topics]
        found = self._admin.erase_records(partitions, keys=[GONE], timeout=self._timeout)
        for topic in topics:
            erased = found[TopicPartition(topic.name, 0)]
            assert isinstance(erased, PartitionErasure), erased
            assert erased.count
            topic.end += 1

    def topic(self, name: str, codec: str, *batches: Collection[int]) -> ErasedTopic:
        """Makes a topic with these batches; each names the records that will be erased."""
        topic = self._writer(name, codec)
        for gone in batches:
            topic.batch(gone)
        return topic

    def _ends_of_segments(self) -> ErasedTopic:
        """The last records of a segment, its last batch, and a whole segment. Each segment has three batches."""
        topic = self._writer("ends-of-segments", "none")
        whole = range(PER_BATCH)
        for gone in ([], [], [9], [], [], whole, whole, whole, whole, [], [], [0], []):
            topic.batch(gone, size=SEGMENT_BYTES // 35)
        return topic

    def _single_records(self) -> ErasedTopic:
        """Batches of one record; those that the producer may repeat stay as empty ones."""
        topic = self._writer("single-records", "none")
        for number in range(12):
            topic.batch([0] if number % 2 else [], 1)
        return topic

    def _transactions(self) -> ErasedTopic:
        topic = self._writer("transactions", "none", transactional=True)
        for commits in (True, False, True):
            topic.begin()
            topic.batch([2, 3])
            topic.batch(range(PER_BATCH))
            topic.complete(commits=commits)
        return topic

    def _open_transaction(self) -> ErasedTopic:
        topic = self._writer("open-transaction", "none", transactional=True)
        topic.begin()
        topic.batch([0])
        topic.complete(commits=True)
        topic.begin()
        topic.batch([4, 9])
        topic.is_open = True
        return topic
