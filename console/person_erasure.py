"""The erasure of a person from the page: a search, then the erasure of what it found, then the brokers that are clean.

Its id is the erasure's id in the ledger. It goes on while nobody looks. The keys are forgotten when the leaders have
erased, `FORGOTTEN_MS` after a search that nothing follows, and with the session.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from lowtide.admin.erasing import NamedErasure, NamingTerms, name_records
from lowtide.admin.errors import AdminError
from lowtide.admin.finding import SearchedPartition
from lowtide.admin.replica_erasing import CleanedReplicas, clean_replicas
from lowtide.admin.standing import StandingTerms
from lowtide.console.answers import sentence_of
from lowtide.console.erasure_reach import reach_of
from lowtide.console.person_search import PersonSearch
from lowtide.console.tombstones import keys_by_place, write_tombstones
from lowtide.protocol.erasure_record import EraseGoal
from lowtide.protocol.types import TopicPartition

if TYPE_CHECKING:
    from lowtide.admin.client import AdminClient
    from lowtide.console.person import PersonScope
    from lowtide.runtime.clock import Clock
    from lowtide.runtime.random import Random

FORGOTTEN_MS: Final = 10 * 60_000
NAMING_MS: Final = 120_000
"""How long leaders may take to erase, besides twice the time of the search."""

NAMING_OF_PARTITION_MS: Final = 500
"""How much longer for each partition: its leader writes to the log and to the ledger."""

ROUND_S: Final = 5.0
"""How long the brokers may hold the question whether they are clean."""

PAUSE_S: Final = 2.0
WATCH_MS_MAX: Final = 12 * 3_600_000
"""How long brokers are asked; a session is not older."""

AT_ONCE: Final = 200
"""Partitions about which the brokers are asked at once, to keep the event loop free."""

NAMED_MAX: Final = 5
"""Topics in a sentence."""

MISSING_MAX: Final = 200
"""Partitions on the page that are not clean everywhere."""


class ErasureStage(StrEnum):
    """How far an erasure is."""

    SEARCHING = "searching"
    FOUND = "found"
    """It can be erased."""
    FORGOTTEN = "forgotten"
    """It was too old, so the keys were forgotten."""
    ERASING = "erasing"
    """The leaders erase: then nobody can read the records."""
    CLEANING = "cleaning"
    """The brokers remove the records from their files."""
    CLEAN = "clean"
    """Every replica of every partition."""
    ENDED = "ended"
    """Something failed, or it was cancelled."""


RUNNING: Final = frozenset({ErasureStage.SEARCHING, ErasureStage.ERASING, ErasureStage.CLEANING})


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsedErasure:
    """An erasure as it was shown."""

    job: PersonErasure
    partitions: tuple[TopicPartition, ...]
    records: int
    standing_ms: int | None
    tombstones: int
    """How many records without a value are written afterwards."""


class PersonErasure:
    """One person's erasure. Call `search`, and after a rehearsal `erase`; `value` at any time."""

    def __init__(self, client: AdminClient, clock: Clock, random: Random, scope: PersonScope) -> None:
        self._client = client
        self._clock = clock
        self._scope: PersonScope | None = scope
        self.erasure_id = UUID(int=random.getrandbits(128), version=4)
        self.selector = scope.selector
        self.topics = scope.topic_names
        self.searching = PersonSearch(client, scope, random.randbytes(16))
        self.stage = ErasureStage.SEARCHING
        self.reach: dict[str, Any] | None = None
        self.named: NamedErasure | None = None
        self.times: dict[str, int] = {"begun": clock.wall_ms()}
        self._search_ms = 0
        self._rehearsed: RehearsedErasure | None = None
        self._cleaned: dict[TopicPartition, CleanedReplicas] = {}
        self._tombstones: dict[str, Any] | None = None
        self._error: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing is running."""
        return self.stage not in RUNNING

    @property
    def scope(self) -> PersonScope | None:
        """Whose records, and where; None when the keys were forgotten."""
        return self._scope

    # ------------------------------------------------------------------ the search
    async def search(self) -> None:
        """Searches, looks up what an erasure would meet, and forgets the keys after a while."""
        begun_ms = self._clock.monotonic_ms()
        try:
            await self.searching.run()
            self._search_ms = self._clock.monotonic_ms() - begun_ms
            searched = {key.topic for key in self.searching.searched()}
            self.reach = await reach_of(self._client, self.searching.found(), searched, self._clock.wall_ms())
        except AdminError as error:
            self._end(sentence_of(error))
            return
        except asyncio.CancelledError:
            self._end("The search was cancelled.")
            raise
        self.times["found"] = self._clock.wall_ms()
        self.stage = ErasureStage.FOUND
        await asyncio.sleep(FORGOTTEN_MS / 1000)
        self.forget()

    def forget(self) -> None:
        """Forgets the keys of a search that nothing has followed."""
        if self.stage is ErasureStage.FOUND:
            self.stage, self._scope = ErasureStage.FORGOTTEN, None

    def _end(self, sentence: str) -> None:
        self.stage, self._error, self._scope = ErasureStage.ENDED, sentence, None

    def erasable(self) -> tuple[TopicPartition, ...]:
        """Returns the partitions that were searched, without those that are held or of which nothing may be deleted."""
        reach = self.reach or {}
        without = {each["topic"] for each in reach.get("holds", ())} | set(reach.get("without_delete", ()))
        return tuple(key for key in self.searching.searched() if key.topic not in without)

    # ------------------------------------------------------------------ the erasure
    def begin(self, rehearsed: RehearsedErasure) -> None:
        """Begins what was rehearsed; `erase` carries it out."""
        self.stage, self._rehearsed = ErasureStage.ERASING, rehearsed
        self.times["asked"] = self._clock.wall_ms()

    async def erase(self) -> None:
        """Erases at the leaders, then asks the brokers until all are clean."""
        rehearsed, scope = self._rehearsed, self._scope
        if rehearsed is None or scope is None:
            return
        standing = None
        if rehearsed.standing_ms is not None:
            standing = StandingTerms(lasts_ms=rehearsed.standing_ms, topics=scope.topics, patterns=scope.patterns)
        terms = NamingTerms(self.erasure_id, standing, topic_ids=scope.topic_ids)
        try:
            allowed_ms = NAMING_MS + NAMING_OF_PARTITION_MS * len(rehearsed.partitions) + 2 * self._search_ms
            call = self._client.call(allowed_ms / 1000)
            self.named = await name_records(call, rehearsed.partitions, scope.query, terms)
            if rehearsed.tombstones:
                await self._write_tombstones(scope, self.named)
            self._scope = None
            self.times["named"] = self._clock.wall_ms()
            self.stage = ErasureStage.CLEANING
            await self._clean(self.named)
        except AdminError as error:
            self._end(sentence_of(error))
        finally:
            self._scope = None
            if not self.is_over:
                self._end("The session has ended. The brokers go on; the ledger says which of them are clean.")

    async def _write_tombstones(self, scope: PersonScope, named: NamedErasure) -> None:
        keys = await keys_by_place(scope.query.keys, scope.partition_counts, named.goals)
        self._tombstones = await write_tombstones(self._client, keys, self._clock.wall_ms())

    async def _clean(self, named: NamedErasure) -> None:
        """Asks the brokers until all are clean, for `WATCH_MS_MAX` at most."""
        until_ms, goals = self._clock.monotonic_ms() + WATCH_MS_MAX, named.goals
        left = list(goals)
        while left and self._clock.monotonic_ms() < until_ms:
            for start in range(0, len(left), AT_ONCE):
                some: Mapping[TopicPartition, EraseGoal] = {key: goals[key] for key in left[start : start + AT_ONCE]}
                call = self._client.call(ROUND_S)
                self._cleaned |= await clean_replicas(call, some, named.view, named.erasure_id)
            left = [key for key in left if self._cleaned[key].not_erased_by]
            if left:
                await asyncio.sleep(PAUSE_S)
        failed = len(named.found) - len(goals)
        if left:
            self._end("Not every broker is clean, and the console has stopped asking.")
        elif failed:
            self._end(f"{failed} of {len(named.found)} partitions could not be erased: search again.")
        else:
            self.stage = ErasureStage.CLEAN
            self.times["clean"] = self._clock.wall_ms()

    # ------------------------------------------------------------------ for the page
    def value(self) -> dict[str, Any]:
        """Returns the progress for the page."""
        return {
            "id": str(self.erasure_id),
            "stage": self.stage.value,
            "selector": self.selector,
            "topics": len(self.topics),
            "topic_names": self.topics[:20],
            "times": self.times,
            "error": self._error,
            "search": self.searching.progress(),
            "found": self.searching.count,
            "erasure": self._erasure(),
        }

    def _erasure(self) -> dict[str, Any] | None:
        """Returns how far the erasure is; None before it."""
        rehearsed, named = self._rehearsed, self.named
        if rehearsed is None:
            return None
        done = [] if named is None else [each for each in named.found.values() if isinstance(each, SearchedPartition)]
        failed = [] if named is None else [(k, e) for k, e in named.found.items() if isinstance(e, AdminError)]
        return {
            "shown": rehearsed.records,
            "partitions": len(rehearsed.partitions),
            "erased": None if named is None else sum(each.count for each in done),
            "standing_until_ms": None if named is None else named.standing_until_ms,
            "tombstones": self._tombstones,
            "brokers": broker_rows(self._cleaned),
            "missing": missing_rows(self._cleaned),
            "failed": [
                {**key._asdict(), "error": sentence_of(error).removeprefix(f"{key}: ")}
                for key, error in failed[:MISSING_MAX]
            ],
            "failed_count": len(failed),
        }


def broker_rows(cleaned: Mapping[TopicPartition, CleanedReplicas]) -> list[dict[str, Any]]:
    """Returns for each broker how many replicas are clean, of how many, and why others are not."""
    clean, missing = Counter[int](), Counter[int]()
    reasons: dict[int, dict[str, int]] = {}
    for each in cleaned.values():
        clean.update(each.erased_by)
        for broker, reason in each.not_erased_by.items():
            missing[broker] += 1
            own = reasons.setdefault(broker, {})
            own[_plain(reason)] = own.get(_plain(reason), 0) + 1
    return [
        {
            "broker": broker,
            "clean": clean[broker],
            "replicas": clean[broker] + missing[broker],
            "reasons": sorted(reasons.get(broker, {}), key=lambda reason: -reasons[broker][reason])[:3],
        }
        for broker in sorted({*clean, *missing})
    ]


def missing_rows(cleaned: Mapping[TopicPartition, CleanedReplicas]) -> list[dict[str, Any]]:
    """Returns the partitions that are not clean everywhere."""
    left = [(key, each) for key, each in cleaned.items() if each.not_erased_by]
    return [{**key._asdict(), "brokers": sorted(each.not_erased_by)} for key, each in left[:MISSING_MAX]]


def _plain(reason: str) -> str:
    """Returns a reason without the time of one round: the console asks again and again."""
    return reason.removeprefix(f"not done within {round(ROUND_S * 1000)} ms: ")


def rehearsal_sentences(rehearsed: RehearsedErasure, standing: str | None) -> list[str]:
    """Returns what will happen, in sentences."""
    job, partitions = rehearsed.job, rehearsed.partitions
    reach = job.reach or {}
    topics, chosen = {key.topic for key in partitions}, set(partitions)
    found = {key: each for key, each in job.searching.found().items() if key in chosen}
    records = sum(each.count for each in found.values())
    sentences = [
        (
            f"{_plural(records, 'record')} in {_plural(len(found), 'partition')} of "
            f"{_plural(len({key.topic for key in found}), 'topic')} will be erased from the files of all brokers."
        ),
        (
            f"Records of the person that arrive before you confirm are erased too: the leaders of "
            f"{_plural(len(partitions), 'partition')} search again."
        ),
        "All other records stay, with their offsets and their order. This can't be undone.",
    ]
    compacted = [name for name in reach.get("compacted", ()) if name in topics]
    if compacted:
        sentences.append(f"In {_named(compacted)} all versions of the keys go, on every replica.")
    newest = sum(last - first + 1 for each in found.values() for first, last in each.newest)
    if newest:
        sentences.append(
            f"{_plural(newest, 'record')} of them are the newest versions of keys, which have no value then."
        )
    held = [each["topic"] for each in reach.get("holds", ())]
    if held:
        sentences.append(f"Nothing is erased in {_named(held)}: a hold keeps all records there.")
    denied = reach.get("without_delete", ())
    if denied:
        sentences.append(f"Nothing is erased in {_named(denied)}: you lack the right DELETE there.")
    failed = len(job.searching.results) - len(job.searching.searched())
    if failed:
        sentences.append(f"Nothing is erased in {_plural(failed, 'partition')} that could not be searched.")
    if rehearsed.tombstones:
        sentences.append(
            f"Then {_plural(rehearsed.tombstones, 'record')} with a key and no value will be written, so that tables "
            "that were made of the topics forget the person too. Such a record contains the key."
        )
    if standing is not None:
        sentences.append(f"For {standing} the brokers go on to look for the keys, and erase them again if they return.")
    return sentences


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _named(names: Sequence[str]) -> str:
    """Names the first topics, and counts the others."""
    shown = ", ".join(names[:NAMED_MAX])
    return shown if len(names) <= NAMED_MAX else f"{shown} and {len(names) - NAMED_MAX} more"
