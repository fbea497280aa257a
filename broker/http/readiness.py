"""Tells whether a broker is ready for clients, and whether a rolling restart may stop the next broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Final

from lowtide.broker.turns import Turns
from lowtide.metadata.session import MetadataSession
from lowtide.storage.directory.log_directories import LogDirectorySet

NAMED_MAX: Final = 10
"""The maximum number of partitions in a response."""

_PARTITIONS_OF_A_STEP: Final = 500


class BrokerStage(Enum):
    """A stage in the life of a broker."""

    STARTS = "the broker starts"
    SERVES = "the broker serves"
    STOPS = "the broker stops"


class Readiness:
    """Collects the reasons why a broker isn't ready. Its owner reports when the broker begins to serve and to stop."""

    def __init__(
        self,
        session: MetadataSession,
        directories: LogDirectorySet,
        turns: Turns,
        *,
        wants_in_sync: bool,
        away: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        """`wants_in_sync`: it is ready only if its replicas, and those of partitions that it leads, are in sync.

        `away()` returns the brokers of this machine that do not serve; brokers of one supervisor are ready together.
        """
        self._away = away
        self._stage = BrokerStage.STARTS
        self.wants_in_sync = wants_in_sync
        self.broker_id = session.broker_id
        self.turns = turns
        self._session = session
        self._directories = directories

    def enter(self, stage: BrokerStage) -> None:
        self._stage = stage

    def reasons(self) -> list[str]:
        """Returns why the broker isn't ready, apart from replicas that aren't in sync."""
        found = [] if self._stage is BrokerStage.SERVES else [self._stage.value]
        if self._session.refused:
            found.append(f"the broker may not act on the metadata: {self._session.refused}")
        elif self._session.is_fenced:
            found.append("the broker is not registered: the metadata store is out of reach, or has given it up")
        if away := self._away():
            found.append(f"other brokers of this machine do not serve: {', '.join(map(str, away))}")
        for path, reason in self._directories.offline.items():
            found.append(f"the log directory {path} is offline, its journal can't be written: {reason}")
        return found

    def out_of_sync(self, found: list[str]) -> Iterator[None]:
        """Adds the reason about out-of-sync replicas of partitions that this broker leads or follows, in steps."""
        image, count, looked = self._session.image, 0, 0
        named: list[str] = []
        for topic in image.topics.values():
            for partition, state in enumerate(topic.partitions):
                looked += 1
                if looked % _PARTITIONS_OF_A_STEP == 0:
                    yield
                if len(state.isr) == len(state.replicas):
                    continue
                lacking = set(state.replicas) - set(state.isr) - set(state.adding)
                if self.broker_id in lacking or (lacking and state.leader == self.broker_id):
                    count += 1
                    if len(named) < NAMED_MAX:
                        named.append(f"{topic.name}-{partition}")
        yield
        if count:
            found.append(
                f"replicas of {count} partitions are not in sync: "
                f"{', '.join(named)}{', …' if count > len(named) else ''}"
            )
