"""Erasing the rows of a person from a table: nothing of the person stays in a file, and no other row is lost."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.types import ListType, LongType, StringType

from lowtide.pipeline.table.committing import HeadMovedError
from lowtide.pipeline.table.maintenance import compact, expire
from lowtide.pipeline.table.progress import OFFSETS, head_id, properties_of
from lowtide.pipeline.table.rewriting import TableRewriteError, check_writable
from lowtide.pipeline.table.schemas.decoding import DECODED_SCHEMA, PREFIX, arrow_schema_of
from tests.examples import one_in, rounds

from .crashes import Crash, Steps, before_commit, crashing
from .persons import (
    PERSONS,
    append_round,
    erase,
    files_with,
    person_rows,
    persons_table,
    round_files,
    values_in,
)
from .tables import sqlite_catalog

FAR_MS = 2**53


def test_nothing_of_a_person_stays_in_any_file(catalog) -> None:
    table = persons_table(catalog)
    append_round(table, [0, 1, 2, 1], 0)
    append_round(table, [0, 0], 4)
    table.append(person_rows([1, 3], 6))
    table.delete("offset = 7")
    assert files_with(table, 1)
    done = erase(table, 1)
    assert (done.rows, done.not_reached) == (3, ())
    assert files_with(table, 1) == []
    assert values_in(table) == [b"secret-0-0", b"secret-0-4", b"secret-0-5", b"secret-2-2"]
    assert len(done.expired) == 4
    assert done.rewritten
    assert done.written
    assert properties_of(table.current_snapshot())[OFFSETS] == '{"numbers":{"0":6}}'


@pytest.mark.parametrize("version", ["1", "2"])
def test_tables_of_both_format_versions_can_be_erased_and_compacted(catalog, version: str) -> None:
    table = persons_table(catalog, **{"format-version": version})
    append_round(table, [0, 1, 2, 1], 0)
    append_round(table, [0, 3], 4)
    compact(table, 100_000)
    done = erase(table, 1)
    assert (done.rows, done.not_reached) == (2, ())
    assert files_with(table, 1) == []
    assert values_in(table) == [b"secret-0-0", b"secret-0-4", b"secret-2-2", b"secret-3-5"]
    append_round(table, [2], 6)
    assert len(values_in(table)) == 5


def test_version_3_is_refused() -> None:
    with pytest.raises(TableRewriteError, match="its format version is 3, and PyIceberg writes only 1 and 2"):
        check_writable(SimpleNamespace(format_version=3, properties={}))


def test_columns_that_were_added_renamed_or_dropped_keep_their_values(catalog) -> None:
    catalog.create_namespace_if_not_exists("db")
    table = catalog.create_table("db.persons", DECODED_SCHEMA)
    with table.update_schema() as update:
        update.add_column("a", LongType())
        update.add_column("gone", StringType())
    table.append(decoded_rows(table, 0, [0, 1], a=[10, 11], gone=["x", "y"]))
    with table.update_schema() as update:
        update.rename_column("a", "b")
        update.delete_column("gone")
        update.add_column("c", ListType(99, StringType(), element_required=False))
    table.append(decoded_rows(table, 2, [1, 2], b=[None, 13], c=[["p", None], []]))
    for work in (lambda: erase(table, 1), lambda: compact(table, 1 << 20)):
        work()
        rows = table.refresh().scan().to_arrow().sort_by(f"{PREFIX}offset").to_pylist()
        found = [(row[f"{PREFIX}offset"], row["b"], row["c"]) for row in rows]
        assert found == [(0, 10, None), (3, 13, [])]


def decoded_rows(table, first: int, persons: list[int], **columns: list) -> pa.Table:
    records = person_rows(persons, first).drop_columns("value")
    records = records.rename_columns([f"{PREFIX}{name}" for name in records.column_names])
    schema = arrow_schema_of(table.schema())
    values = {name: pa.array(column, schema.field(name).type) for name, column in columns.items()}
    return pa.table(
        {name: values.get(name, records[name] if name in records.column_names else None) for name in schema.names},
        schema=schema,
    )


def test_bounds_of_files_that_a_compaction_removed_are_forgotten(catalog) -> None:
    """The manifest of a compaction has entries of removed files with their bounds, and later commits keep it."""
    table = persons_table(catalog)
    for number in range(4):
        append_round(table, [1, 1], number * 2)
    compact(table, 100_000)
    append_round(table, [2], 8)
    erase(table, 1)
    assert files_with(table, 1) == []
    assert values_in(table) == [b"secret-2-8"]


def test_a_round_that_began_before_the_fence_leaves_nothing(catalog) -> None:
    table = persons_table(catalog)
    append_round(table, [0, 1], 0)
    round_files(table, person_rows([1, 1], 2))
    done = erase(table, 1)
    assert files_with(table, 1) == []
    assert done.not_reached == ()


def test_a_round_that_began_after_the_fence_keeps_its_files(catalog) -> None:
    table = persons_table(catalog)
    append_round(table, [0, 1], 0)
    erase(table, 1)
    files = round_files(table, person_rows([1, 1], 2))
    done = erase(table, 2)
    assert done.not_reached == ()
    assert not files_with(table, 2)
    assert not files_with(table, 1), "the second fence makes it invalid"
    assert all(not table.io.new_input(each.file_path).exists() for each in files)


def test_a_table_without_snapshots_gets_a_fence(catalog) -> None:
    table = persons_table(catalog)
    round_files(table, person_rows([1, 1], 2))
    done = erase(table, 1)
    assert done.fence.snapshot_id == head_id(table.metadata)
    assert files_with(table, 1) == []


# ---------------------------------------------------------------------- any history
WORKS = ("round", "compact", "expire", "erase")

ACTIONS = st.one_of(
    st.tuples(st.just("round"), st.lists(st.sampled_from(PERSONS), min_size=1, max_size=4)),
    st.tuples(st.just("foreign"), st.lists(st.sampled_from(PERSONS), min_size=1, max_size=4)),
    st.tuples(st.just("dead round"), st.lists(st.sampled_from(PERSONS), min_size=1, max_size=4)),
    st.tuples(st.just("foreign delete"), st.integers(0, 20)),
    st.tuples(st.just("compact"), st.one_of(st.none(), st.integers(0, 12))),
    st.tuples(st.just("expire"), st.one_of(st.none(), st.integers(0, 12))),
    st.tuples(st.just("erase"), st.tuples(st.sampled_from(PERSONS), st.one_of(st.none(), st.integers(0, 40)))),
    st.tuples(st.just("beside"), st.tuples(st.sampled_from(WORKS), st.integers(0, 3), st.sampled_from(WORKS))),
)


class History:
    """What happens to one table, and what its rows must be."""

    def __init__(self, catalog) -> None:
        self.table = persons_table(catalog)
        self.rows: dict[int, int] = {}
        self.next_offset = 0

    def run(self, action: str, argument) -> None:
        if action in ("round", "foreign"):
            if action == "round":
                append_round(self.table, argument, self.next_offset)
            else:
                self.table.refresh().append(person_rows(argument, self.next_offset))
            self.rows.update({self.next_offset + number: person for number, person in enumerate(argument)})
            self.next_offset += len(argument)
        elif action == "dead round":
            round_files(self.table.refresh(), person_rows(argument, self.next_offset))
        elif action == "foreign delete":
            if self.rows.pop(argument, None) is not None:
                self.table.refresh().delete(f"offset = {argument}")
        elif action == "compact":
            self.with_crash(lambda: compact(self.table, 6_000), argument)
        elif action == "expire":
            self.with_crash(lambda: expire(self.table, FAR_MS), argument)
        elif action == "beside":
            self.beside(*argument)
        else:
            self.erase(*argument)
        expected = sorted(f"secret-{person}-{offset}".encode() for offset, person in self.rows.items())
        assert values_in(self.table) == expected, (action, argument)

    def with_crash(self, work, at: int | None) -> None:
        steps = Steps(at)
        try:
            with crashing(steps):
                work()
        except Crash:
            self.table = self.table.catalog.load_table(self.table.name())

    def beside(self, work: str, commit: int, other: str) -> None:
        """Lets another process do its whole work just before a commit of the first."""
        with before_commit(lambda: self.work(other, 3), commit):
            self.work(work, 2)

    def work(self, name: str, person: int) -> None:
        table = self.table.catalog.load_table(self.table.name())
        if name == "round":
            first, self.next_offset = self.next_offset, self.next_offset + 2
            try:
                append_round(table, [person, 4], first)
            except HeadMovedError:  # its files stay, as if the process had died
                append_round(table, [person, 4], first)
            self.rows.update({first: person, first + 1: 4})
        elif name == "compact":
            compact(table, 6_000)
        elif name == "expire":
            expire(table, FAR_MS)
        else:
            assert erase(table, person).not_reached == ()
            self.rows = {offset: each for offset, each in self.rows.items() if each != person}
            assert files_with(table, person) == []

    def erase(self, person: int, at: int | None) -> None:
        erasure_id = uuid4()
        self.with_crash(lambda: erase(self.table, person, erasure_id=erasure_id), at)
        done = erase(self.table, person, erasure_id=erasure_id)
        assert done.not_reached == ()
        assert done.rows == sum(each == person for each in self.rows.values())
        self.rows = {offset: each for offset, each in self.rows.items() if each != person}
        assert files_with(self.table, person) == []


@given(st.lists(ACTIONS, min_size=3, max_size=12))
@settings(max_examples=rounds(25), deadline=None, suppress_health_check=list(HealthCheck))
def test_after_any_history_an_erased_person_is_in_no_file(tmp_path_factory, actions) -> None:
    with sqlite_catalog(tmp_path_factory.mktemp("history")) as catalog:
        history = History(catalog)
        history.run("round", [0, 1, 2])
        for action in (*actions, ("erase", (1, None))):
            history.run(*action)
        progress = properties_of(history.table.current_snapshot()).get(OFFSETS)
        assert progress is not None, "the sink's progress is carried through all commits of ours"


@pytest.mark.parametrize("share", one_in(4, range(8)))
def test_a_crash_at_each_step_is_completed_by_the_same_command(tmp_path_factory, share: int) -> None:
    at = share
    while True:
        with sqlite_catalog(tmp_path_factory.mktemp("crash")) as catalog:
            table = persons_table(catalog)
            append_round(table, [0, 1, 2], 0)
            table.append(person_rows([1, 3], 3))
            round_files(table, person_rows([1, 1], 5))
            erasure_id, steps = uuid4(), Steps(at)
            try:
                with crashing(steps):
                    erase(table, 1, erasure_id=erasure_id)
            except Crash:
                table = catalog.load_table(table.name())
            else:
                assert at > 20, "there were many steps"
                return
            done = erase(table, 1, erasure_id=erasure_id)
            assert (done.rows, done.not_reached) == (2, ()), steps.seen
            assert files_with(table, 1) == [], steps.seen
            assert values_in(table) == [b"secret-0-0", b"secret-2-2", b"secret-3-4"]
        at += 8
