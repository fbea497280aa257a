"""Erasures during a soak: by key, by header, and a standing one, each looked for in reads and in the files of brokers.

A round writes the letters of five persons and of one who stands erased, and erases the first person by key and the
second by header. Then no reader and no file of any broker may have a letter of theirs, nor of the standing one from an
earlier round, and all other letters of the round must be there. Markers are in keys, values and headers alike.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from lowtide.admin import AdminClient, TopicPartition
from lowtide.admin.erasing import PartitionErasure
from lowtide.admin.errors import AdminError
from lowtide.admin.offsets import OffsetSpec
from lowtide.admin.standing import StandingTerms
from lowtide.protocol.records import iterate_batches, iterate_records
from tests.chaos.cluster_processes import NotInTimeError

from .run import SMALL, Run

PEOPLE = "people"
PARTITION = TopicPartition(PEOPLE, 0)
CONFIGS = SMALL | {"retention.ms": "600000"}
HEADER = "person"
STANDING = b"<standing person>"
STANDS_MS = 30 * 24 * 3_600_000
PERSONS, LETTERS = 5, 4
LIMIT_S = 180.0
"""Longer than brokers need while another one restarts, on a busy machine."""

AGAIN_S = 1.0
FAILED_MAX = 5
"""Rounds in a row."""

RECORD_BYTES_MAX = 1 << 20


def marker(person: int) -> bytes:
    return b"<person %d>" % person


async def erase_people(run: Run) -> None:
    """Writes and erases, a round after the other."""
    await run.topic(PEOPLE, 1, CONFIGS)
    async with run.admin() as admin:
        if not run.folder.state.standing:
            terms = StandingTerms(lasts_ms=STANDS_MS, topics=[PEOPLE])
            await confirmed(run, admin, keys=[STANDING], standing=terms)
            run.folder.state.standing = True
            run.folder.save()
        failed = 0
        while True:
            try:
                await one_round(run, admin)
                failed = 0
            except AdminError as error:  # Brokers didn't answer in time: the next round has other persons.
                failed += 1
                run.reported[f"erasures given up: {type(error).__name__}"] += 1
                assert failed < FAILED_MAX, error
            if not await run.pause(run.options.erase_seconds):
                return


async def one_round(run: Run, admin: AdminClient) -> None:
    """Errors: AssertionError if something is left, or missing."""
    first = run.folder.state.persons
    run.folder.state.persons += PERSONS
    run.folder.save()
    persons = [marker(person) for person in range(first, first + PERSONS)]
    await gone(run, admin, [STANDING])  # What the last round wrote.
    now_ms = int(time.time() * 1000)
    letters = [(now_ms, person, person, ((HEADER.encode(), person),)) for person in [*persons, STANDING] * LETTERS]
    written = (await admin.produce_records({PARTITION: letters}, timeout=LIMIT_S))[PARTITION]
    if isinstance(written, AdminError):
        raise written
    begun_s = time.monotonic()
    await confirmed(run, admin, keys=[persons[0]])
    await confirmed(run, admin, header=(HEADER, persons[1]))
    run.counts["erasures"] += 2
    run.gauges["erased everywhere, s"] = (time.monotonic() - begun_s) / 2
    left = await keys_from(admin, written.first_offset)
    assert files_with(run, persons[:2]) == []
    assert [key for key in left if key != STANDING] == persons[2:] * LETTERS, left
    run.counts["standing letters"] += LETTERS


async def confirmed(run: Run, admin: AdminClient, **what: object) -> None:
    """Erases, again with the same id until all brokers have confirmed it. Errors: AssertionError if they don't."""
    erasure_id, until_s, result = None, time.monotonic() + LIMIT_S, None
    while time.monotonic() < until_s:
        try:
            result = (await admin.erase_records([PARTITION], erasure_id=erasure_id, timeout=30, **what))[PARTITION]
        except AdminError as error:  # A broker restarts: no answer from it in time.
            result = error
        if isinstance(result, PartitionErasure):
            erasure_id = result.erasure_id
            if not result.not_erased_by:
                assert sorted(result.erased_by) == sorted(run.cluster.ids), result
                return
        await asyncio.sleep(AGAIN_S)
    raise NotInTimeError(f"an erasure was not confirmed within {LIMIT_S} s: {result}\n{run.cluster.tail()}")


async def gone(run: Run, admin: AdminClient, markers: list[bytes]) -> None:
    """Waits until neither readers nor files have these. Errors: AssertionError if they still have."""
    until_s = time.monotonic() + LIMIT_S
    while True:
        read = [key for key in await keys_from(admin, 0) if key in markers]
        files = files_with(run, markers)
        if not read and not files:
            return
        assert time.monotonic() < until_s, f"{markers} are left: {len(read)} are read, files {files}"
        await asyncio.sleep(AGAIN_S)


async def keys_from(admin: AdminClient, offset: int) -> list[bytes]:
    """Returns the keys of all records from an offset on, or from the log start if that is higher."""
    fetched = await admin.fetch_records(PARTITION, await log_start(admin), timeout=LIMIT_S)
    position, end = max(fetched.log_start_offset, offset), fetched.high_watermark
    keys: list[bytes] = []
    while position < end:
        fetched = await admin.fetch_records(PARTITION, position, timeout=LIMIT_S)
        data, before = bytes(fetched.records), position
        for at, header in iterate_batches(data):
            if at + header.size_bytes > len(data):
                break
            if not header.is_control and header.record_count:
                records = iterate_records(data[at : at + header.size_bytes], max_bytes=RECORD_BYTES_MAX)
                keys += [bytes(record.key or b"") for record in records if record.offset >= position]
            position = max(position, header.next_offset)
        if position == before:
            break  # Erased up to the end.
    return keys


async def log_start(admin: AdminClient) -> int:
    """Returns the first readable offset."""
    found = (await admin.list_offsets({PARTITION: OffsetSpec.EARLIEST}, timeout=LIMIT_S))[PARTITION]
    assert not isinstance(found, AdminError), found
    return int(found.offset)


def files_with(run: Run, markers: list[bytes]) -> list[str]:
    """Returns the files of all brokers that have one of these. Read again if a file is renamed meanwhile."""
    while True:
        try:
            return [
                str(path.relative_to(run.folder.path))
                for directory in run.cluster.directories.values()
                for path in sorted(directory.rglob(f"{PEOPLE}-0*/*"))
                if has_any(path, markers)
            ]
        except FileNotFoundError:
            continue


def has_any(path: Path, markers: list[bytes]) -> bool:
    content = path.read_bytes() if path.is_file() else b""
    return any(each in content for each in markers)
