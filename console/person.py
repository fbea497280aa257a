"""Reads whose records are wanted, and where: keys or a header, and topics by name, by pattern, or all.

Keys and headers are personal data. They arrive in the body of a request and are kept in memory only, until their
records are erased: no URL, answer, error or log has one.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.finding import KEY_BYTES_MAX, KEY_READERS, KEYS_MAX, RecordQuery
from lowtide.console import arguments
from lowtide.console.answers import bad, sentence_of
from lowtide.console.arguments import TOPIC_CHARACTERS_MAX, Parameters
from lowtide.protocol.types import TopicId, TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.admin.cluster_view import ClusterView, TopicDescription

NAMES_MAX: Final = 1_000
"""Topics that one search names."""

PATTERNS_MAX: Final = 100
SEARCHED_PARTITIONS_MAX: Final = 2_000
"""Partitions of one search."""

HEADER_CHARACTERS_MAX: Final = 8_192


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonScope:
    """Whose records, and in which partitions. Its `repr` has no key."""

    query: RecordQuery
    partitions: tuple[TopicPartition, ...]
    topic_ids: Mapping[str, TopicId]
    topics: tuple[str, ...]
    """The topics that were named; with all topics, these."""
    patterns: tuple[str, ...]
    without_leader: tuple[TopicPartition, ...]
    """They can't be searched now."""

    @property
    def selector(self) -> dict[str, Any]:
        """What was given, without its content."""
        return {"kind": "keys", "count": len(self.query.keys)} if self.query.keys else {"kind": "header", "count": 1}

    @property
    def partition_counts(self) -> Mapping[str, int]:
        """The number of partitions of each topic."""
        return Counter(key.topic for key in (*self.partitions, *self.without_leader))

    @property
    def topic_names(self) -> list[str]:
        """The topics of the partitions."""
        return sorted({key.topic for key in (*self.partitions, *self.without_leader)})


async def person_scope(client: AdminClient, given: Parameters) -> PersonScope:
    """Reads a request. Errors: RefusedError, AdminError; neither has a key."""
    query = query_of(given)
    names = _words(given, "topics", NAMES_MAX)
    patterns = _words(given, "patterns", PATTERNS_MAX)
    everything = arguments.flag(given, "all")
    if everything == bool(names or patterns):
        raise bad("Give topics or patterns, or choose all topics.")
    view = await client.call().view(None if everything or patterns else names)
    chosen = chosen_topics(view, names, patterns, everything=everything)
    rows = [(TopicPartition(topic.name, number), row) for topic in chosen for number, row in topic.partitions.items()]
    if not rows:
        raise bad("There is no topic that you may see.")
    if len(rows) > SEARCHED_PARTITIONS_MAX:
        raise bad(
            f"These topics have {len(rows)} partitions, and a search has at most {SEARCHED_PARTITIONS_MAX}: "
            "choose fewer topics."
        )
    return PersonScope(
        query=query,
        partitions=tuple(key for key, row in rows if row.leader is not None),
        topic_ids={topic.name: topic.topic_id for topic in chosen if topic.topic_id is not None},
        topics=tuple(topic.name for topic in chosen) if everything else tuple(names),
        patterns=tuple(patterns),
        without_leader=tuple(key for key, row in rows if row.leader is None),
    )


def query_of(given: Parameters) -> RecordQuery:
    """Reads the keys or the header. Errors: RefusedError, without its content."""
    keys, header = given.get("keys"), given.get("header")
    if bool(keys) == bool(header):
        raise bad("Give keys or a header.")
    if header:
        text = arguments.text(given, "header", longest=HEADER_CHARACTERS_MAX)
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise bad("The header must have the form NAME=VALUE.")
        return RecordQuery(header=(name, value.encode()))
    read = KEY_READERS[arguments.choice(given, "key_format", tuple(KEY_READERS), "text")]
    if not isinstance(keys, list) or len(keys) > KEYS_MAX:
        raise bad(f"keys must be a list of 1 to {KEYS_MAX} strings.")
    found = set()
    for number, text in enumerate(keys, 1):
        if not isinstance(text, str) or not text:
            raise bad(f"Key {number} is empty.")
        try:
            found.add(read(text))
        except ValueError:
            raise bad(f"Key {number} is not {given.get('key_format', 'text')}.") from None
    if sum(map(len, found)) > KEY_BYTES_MAX:
        raise bad(f"The keys have more than {KEY_BYTES_MAX} bytes together.")
    try:
        return RecordQuery(keys=frozenset(found))
    except ValueError as error:
        raise bad(sentence_of(error)) from None


def chosen_topics(
    view: ClusterView, names: Sequence[str], patterns: Sequence[str], *, everything: bool
) -> list[TopicDescription]:
    """Returns the topics that are named or match a pattern, sorted. Errors: RefusedError for unknown ones."""
    known = [name for name, topic in view.topics.items() if not topic.is_internal]
    chosen = set(known) if everything else set(names)
    for name in names:
        if name not in view.topics:
            raise bad(f"There is no topic {name}, or you may not describe it.")
        if view.topics[name].is_internal:
            raise bad(f"{name} is an internal topic: its records belong to the brokers.")
    for pattern in patterns:
        matching = fnmatch.filter(known, pattern)
        if not matching:
            raise bad(f"No topic matches {pattern}.")
        chosen.update(matching)
    return [view.topics[name] for name in sorted(chosen)]


def _words(given: Parameters, name: str, most: int) -> list[str]:
    """Reads a list of names or patterns, which may be missing. Errors: RefusedError."""
    if not given.get(name):
        return []
    return sorted({each for each in arguments.texts(given, name, most) if _is_short(each, name)})


def _is_short(text: str, name: str) -> bool:
    if len(text) > TOPIC_CHARACTERS_MAX:
        raise bad(f"{name} must have at most {TOPIC_CHARACTERS_MAX} characters each.")
    return True
