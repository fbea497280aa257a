"""Whether a broker is ready: clients can be sent to it, and the next broker of a rolling restart may be stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Final

from lowtide.broker.turns import Turns
from lowtide.metadata.session import MetadataSession
from lowtide.storage.directory.log_directories import LogDirectorySet

NAMED_MAX: Final = 10
"""Partitions that are named in an answer."""

_PARTITIONS_OF_A_STEP: Final = 500


class Stage(Enum):
    """Of the life of a broker."""

    STARTS = "the broker starts"
    SERVES = "the broker serves"
    STOPS = "the broker stops"


class Readiness:
    """What is asked by orchestrators. Its owner says when the broker begins to serve, and when it begins to stop."""

    def __init__(
        self,
        session: MetadataSession,
        directories: LogDirectorySet,
        turns: Turns,
        *,
        wants_in_sync: bool,
        away: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        """`wants_in_sync`: it is ready only while its replicas are in sync, and those of the partitions that it leads.

        `away()`: brokers of this machine that don't serve. Where one supervisor runs several, they are ready together.
        """
        self._away = away
        self._stage = Stage.STARTS
        self.wants_in_sync = wants_in_sync
        self.broker_id = session.broker_id
        self.turns = turns
        self._session = session
        self._directories = directories

    def enter(self, stage: Stage) -> None:
        """The broker is in this stage from now on."""
        self._stage = stage

    def reasons(self) -> list[str]:
        """Why it isn't ready, apart from replicas that aren't in sync; empty where it is."""
        found = [] if self._stage is Stage.SERVES else [self._stage.value]
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
        """Adds a reason for partitions with replicas that aren't in sync, if this broker leads or follows them.

        In steps.
        """
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
                f"replicas of {count} partitions are not in sync: {', '.join(named)}{', …' if count > len(named) else ''}"
            )
