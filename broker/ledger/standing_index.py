"""Finds the standing erasures of a topic. Pure."""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING, NamedTuple

from lowtide.protocol.key_digest import DigestIndex, KeyDigests
from lowtide.replication.topic_names import INTERNAL_TOPICS
from lowtide.storage.erasures.record_search import DigestSelector

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowtide.metadata.standing_image import StandingImage


class TopicStanding(NamedTuple):
    """The standing erasures of one topic; the groups of selector and index are in the order of the ids."""

    ids: tuple[bytes, ...]
    selector: DigestSelector
    digests: DigestIndex


class StandingIndex:
    """The standing erasures of one image."""

    def __init__(self, standing: Mapping[bytes, StandingImage]) -> None:
        self.standing = standing
        self._by_topic: dict[str, list[bytes]] = {}
        self._by_pattern: dict[str, list[bytes]] = {}
        for erasure_id, each in standing.items():
            for name in each.record.topics:
                self._by_topic.setdefault(name, []).append(erasure_id)
            for pattern in each.record.patterns:
                self._by_pattern.setdefault(pattern, []).append(erasure_id)
        self._patterns = [(re.compile(fnmatch.translate(each)), ids) for each, ids in self._by_pattern.items()]
        self._ids: dict[str, tuple[bytes, ...]] = {}
        self._found: dict[str, TopicStanding] = {}

    def names(self, topic: str) -> bool:
        """Returns whether a standing erasure covers a topic."""
        return bool(self._ids_of(topic))

    def of(self, topic: str) -> TopicStanding:
        """Returns the standing erasures that cover a topic."""
        found = self._found.get(topic)
        if found is None:
            ids = self._ids_of(topic)
            groups = tuple(
                KeyDigests(record.secret, record.digests) for record in (self.standing[each].record for each in ids)
            )
            found = self._found[topic] = TopicStanding(ids, DigestSelector(groups), DigestIndex(groups))
        return found

    def _ids_of(self, topic: str) -> tuple[bytes, ...]:
        known = () if topic in INTERNAL_TOPICS else self._ids.get(topic)
        if known is None:
            ids = dict.fromkeys(self._by_topic.get(topic, ()))
            for pattern, others in self._patterns:
                if pattern.match(topic):
                    ids |= dict.fromkeys(others)
            known = self._ids[topic] = tuple(ids)
        return known
