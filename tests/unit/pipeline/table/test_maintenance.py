"""Compaction, expiry and orphans: the rows stay what they are, beside all other writers."""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.transforms import DayTransform

from lowtide.pipeline.table import maintenance
from lowtide.pipeline.table.committing import HeadMovedError, TableChange, commit_change
from lowtide.pipeline.table.files import reached_now
from lowtide.pipeline.table.maintenance import TableMaintenanceError, compact, delete_orphans, expire, plan_bins
from lowtide.pipeline.table.partitioning import split_rows
from lowtide.pipeline.table.progress import OFFSETS, head_id, properties_of
from lowtide.pipeline.table.rewriting import FilePlace, FileReader, FileWriter, live_files
from tests.examples import one_in

from .crashes import Crash, Steps, before_commit, crashing
from .deletes import delete_equal, delete_positions
from .persons import (
    append_round,
    erase,
    files_with,
    person_rows,
    persons_table,
    root_of,
    round_files,
    values_in,
)
from .tables import progress, sqlite_catalog

FAR_MS = 2**53
FAR_NS = 2**62
LARGE = 1 << 20


def append_partitioned(table, rows: pa.Table) -> None:
    """Appends rows to a partitioned table: a file for each of its partitions."""
    files = []
    for key, part in split_rows(rows.cast(FileReader(table.io, table.metadata).arrow), table.spec(), table.schema()):
        place = FilePlace(
            base_snapshot_id=None, round_id=uuid4(), spec_id=table.spec().spec_id, partition=key.partition
        )
        writer = FileWriter(table, place, 0)
        for batch in part.to_batches():
            writer.write(batch)
        files += writer.close()
    commit_change(table.refresh(), TableChange(added=files))


def order_in(table) -> list[tuple[int, int]]:
    """Returns the partitions and offsets in the order of the rows in the files."""
    rows = table.refresh().scan(selected_fields=("partition", "offset")).to_arrow().to_pylist()
    return [(each["partition"], each["offset"]) for each in rows]


# ---------------------------------------------------------------------- small files
def test_small_files_become_one_and_its_rows_are_in_order(catalog) -> None:
    table = persons_table(catalog)
    for first in (20, 0, 10):
        rows = pa.concat_tables([person_rows([0, 1] * 5, first, partition) for partition in (0, 1, 2)])
        commit_change(table, TableChange(added=round_files(table, rows), properties=progress({0: first + 10})))
    before = values_in(table)
    done = compact(table, LARGE)
    assert (done.bins, done.merged, done.written, done.skipped) == (1, 3, 1, 0)
    assert values_in(table) == before
    assert order_in(table) == [(partition, offset) for partition in range(3) for offset in range(30)]
    assert properties_of(table.current_snapshot())[OFFSETS] == '{"numbers":{"0":20}}'
    assert compact(table, LARGE).bins == 0, "nothing is left to do"


def test_each_partition_of_the_table_keeps_its_files(catalog) -> None:
    table = persons_table(catalog)
    with table.update_spec() as update:
        update.add_field("timestamp", DayTransform(), "day")
    for first in (0, 24, 48, 12):
        append_partitioned(table, person_rows([1] * 30, first))
    before, days = (
        values_in(table),
        {tuple(each.data_file.partition) for each in live_files(table, table.current_snapshot())},
    )
    done = compact(table, LARGE)
    assert done.merged > done.written
    after = live_files(table, table.refresh().current_snapshot())
    assert {tuple(each.data_file.partition) for each in after} == days
    assert len(after) == len(days)
    assert values_in(table) == before
    assert table.scan("timestamp >= '2023-11-15T00:00:00+00:00'").to_arrow().num_rows < len(before)


def test_position_deletes_are_applied_and_then_forgotten(catalog) -> None:
    table = persons_table(catalog)
    append_round(table, [0, 1, 2, 3], 0)
    append_round(table, [0, 1], 4)
    path = next(
        each.data_file.file_path
        for each in live_files(table, table.current_snapshot())
        if each.data_file.record_count == 4
    )
    delete_positions(table, path, [1, 3])
    before = values_in(table)
    assert len(before) == 4
    compact(table, LARGE)
    assert values_in(table) == before
    assert all(not each.deletes for each in live_files(table, table.current_snapshot()))
    assert properties_of(table.current_snapshot())["total-delete-files"] == "0"
    assert properties_of(table.current_snapshot())["total-records"] == "4"


def test_rows_deleted_by_position_are_erased_from_the_files_too(catalog) -> None:
    table = persons_table(catalog)
    append_round(table, [0, 1, 2], 0)
    path = live_files(table, table.current_snapshot())[0].data_file.file_path
    delete_positions(table, path, [1])
    assert files_with(table, 1)
    done = erase(table, 1)
    assert (done.rows, done.not_reached) == (0, ())
    assert files_with(table, 1) == []
    assert values_in(table) == [b"secret-0-0", b"secret-2-2"]


def test_equality_deletes_are_refused_in_a_sentence(catalog) -> None:
    table = persons_table(catalog)
    append_round(table, [0, 1, 2], 0)
    delete_equal(table, b"person-0-key")
    for work in (lambda: compact(table, LARGE), lambda: erase(table, 1)):
        with pytest.raises(Exception, match=r"table db\.persons: it has equality deletes, which PyIceberg can't read"):
            work()


def test_a_commit_of_the_sink_between_does_not_spoil_a_compaction(catalog) -> None:
    table, other = persons_table(catalog), catalog.load_table("db.persons")
    append_round(table, [0, 1], 0)
    append_round(table, [2, 3], 2)
    with before_commit(lambda: append_round(other, [4], 4)):
        done = compact(table, LARGE)
    assert (done.bins, done.skipped) == (2, 0)
    assert values_in(table) == [f"secret-{person}-{person}".encode() for person in range(5)]
    assert properties_of(table.current_snapshot())[OFFSETS] == '{"numbers":{"0":5}}'


def test_a_compaction_that_began_before_a_fence_brings_no_row_back(catalog) -> None:
    table, other = persons_table(catalog), catalog.load_table("db.persons")
    append_round(table, [0, 1], 0)
    append_round(table, [2, 3], 2)
    with before_commit(lambda: erase(other.refresh(), 1)):
        done = compact(table, LARGE)
    assert done.skipped == 1
    assert files_with(table, 1) == []
    assert values_in(table) == [b"secret-0-0", b"secret-2-2", b"secret-3-3"]


def test_a_fence_without_rows_in_the_merged_files_stops_a_compaction_too(catalog) -> None:
    """What a compaction reads is in the table, so it would do no harm; but the rule has no exception."""
    table, other = persons_table(catalog), catalog.load_table("db.persons")
    append_round(table, [0, 1], 0)
    append_round(table, [2, 3], 2)
    with before_commit(lambda: erase(other.refresh(), 77)):
        done = compact(table, LARGE)
    assert done.skipped == 1
    assert len(values_in(table)) == 4
    assert not [each for each in root_of(table).rglob("*.parquet") if str(each) not in reached_now(table).data]


def test_a_commit_between_does_not_spoil_an_erasure(catalog) -> None:
    table, other = persons_table(catalog), catalog.load_table("db.persons")
    append_round(table, [0, 1], 0)
    with before_commit(lambda: append_round(other.refresh(), [1, 2], 2)):
        done = erase(table, 1)
    assert (done.rows, done.not_reached) == (2, ())
    assert files_with(table, 1) == []
    assert values_in(table) == [b"secret-0-0", b"secret-2-3"]


def test_a_compaction_between_does_not_spoil_an_erasure(catalog) -> None:
    table, other = persons_table(catalog), catalog.load_table("db.persons")
    append_round(table, [0, 1], 0)
    append_round(table, [1, 2], 2)
    with before_commit(lambda: compact(other.refresh(), LARGE)):
        done = erase(table, 1)
    assert (done.rows, done.not_reached) == (2, ())
    assert files_with(table, 1) == []
    assert values_in(table) == [b"secret-0-0", b"secret-2-3"]


def test_another_erasure_between_does_not_spoil_an_erasure(catalog) -> None:
    table, other = persons_table(catalog), catalog.load_table("db.persons")
    append_round(table, [0, 1, 2], 0)
    with before_commit(lambda: erase(other.refresh(), 2)):
        done = erase(table, 1)
    assert (done.rows, done.not_reached) == (1, ())
    assert files_with(table, 1) == []
    assert files_with(table, 2) == []
    assert values_in(table) == [b"secret-0-0"]


def test_a_round_finds_out_that_an_erasure_has_deleted_what_it_is_based_on(catalog) -> None:
    """Its manifests are gone, which is no error of the storage."""
    table, other = persons_table(catalog), catalog.load_table("db.persons")
    append_round(table, [0, 1], 0)
    files = round_files(table, person_rows([1], 2))
    erase(other.refresh(), 1)
    with pytest.raises(HeadMovedError, match="another commit to table db.persons came first"):
        commit_change(table, TableChange(added=files, properties=progress({0: 3})))


class Sized:
    """A file of some size, as far as the plan of a compaction looks at it."""

    def __init__(self, name: str, size: int) -> None:
        self.key = name
        self.deletes: frozenset[str] = frozenset()
        self.data_file = self
        self.file_size_in_bytes = size
        self.spec_id = 0
        self.partition = "p"
        self.lower_bounds = {2: int(name).to_bytes(8, "little")}


@given(st.lists(st.integers(1, 400), max_size=60))
def test_after_a_compaction_nearly_all_bytes_are_in_large_files(file_sizes) -> None:
    """The files that a bin becomes have its bytes. Compression is left out."""
    target = 128
    files: list[Any] = [Sized(str(number), size) for number, size in enumerate(file_sizes)]
    for _ in range(maintenance.PASSES):
        bins: list[list[Any]] = [*plan_bins(files, target, {"offset": 2, "partition": 1})]
        if not bins:
            break
        gone = [each for one in bins for each in one]
        assert max(Counter(each.key for each in gone).values()) == 1
        files = [each for each in files if each not in gone]
        files += [
            Sized(str(1000 + len(files) + number), sum(each.file_size_in_bytes for each in one))
            for number, one in enumerate(bins)
        ]
    total = sum(each.file_size_in_bytes for each in files)
    small = [each.file_size_in_bytes for each in files if each.file_size_in_bytes < target // 2]
    assert total == sum(file_sizes)
    assert len(files) == len(small) == 1 or sum(small) <= total * 0.01, "small files are at most a hundredth"


# ---------------------------------------------------------------------- old snapshots
def test_expired_snapshots_take_their_files_with_them(catalog) -> None:
    table = persons_table(catalog)
    for number in range(4):
        append_round(table, [number], number)
    compact(table, LARGE)
    before = values_in(table)
    done = expire(table, FAR_MS)
    assert len(done.snapshots) == 4
    assert len([each for each in done.files if each.endswith(".parquet")]) == 4
    assert values_in(table) == before
    assert len(list(root_of(table).rglob("*.parquet"))) == 1


def test_what_a_tag_holds_stays_readable(catalog) -> None:
    table = persons_table(catalog)
    append_round(table, [0, 1], 0)
    held = head_id(table.metadata)
    table.manage_snapshots().create_tag(held, "audit").commit()
    append_round(table, [2], 2)
    compact(table, LARGE)
    expire(table, FAR_MS)
    assert table.refresh().scan(snapshot_id=held).to_arrow().num_rows == 2


def test_an_erasure_names_the_tag_that_holds_rows(catalog) -> None:
    table = persons_table(catalog)
    append_round(table, [0, 1], 0)
    table.manage_snapshots().create_tag(head_id(table.metadata), "audit").commit()
    append_round(table, [2], 2)
    erasure_id = uuid4()
    done = erase(table, 1, erasure_id=erasure_id)
    assert done.not_reached == ("the tag audit holds such rows: remove it, then run the same command again",)
    assert values_in(table) == [b"secret-0-0", b"secret-2-2"]
    assert files_with(table, 1)
    table.manage_snapshots().remove_tag("audit").commit()
    again = erase(table.refresh(), 1, erasure_id=erasure_id)
    assert (again.rows, again.not_reached) == (1, ())
    assert files_with(table, 1) == []


def test_a_tag_without_such_rows_is_no_hindrance(catalog) -> None:
    table = persons_table(catalog)
    append_round(table, [0, 2], 0)
    held = head_id(table.metadata)
    table.manage_snapshots().create_tag(held, "audit").commit()
    append_round(table, [1], 2)
    assert erase(table, 1).not_reached == ()
    assert files_with(table, 1) == []
    assert table.refresh().scan(snapshot_id=held).to_arrow().num_rows == 2


def test_the_newest_snapshots_and_young_ones_stay(catalog) -> None:
    table = persons_table(catalog)
    for number in range(5):
        append_round(table, [number], number)
    young = table.snapshots()[1].timestamp_ms
    assert (
        set(expire(table, young).snapshots) == {table.snapshots()[0].snapshot_id}
        or young == table.snapshots()[0].timestamp_ms
    )
    assert len(expire(table, FAR_MS, keep=3, dry_run=True).snapshots) <= 2
    expire(table, FAR_MS, keep=3)
    assert len(table.refresh().snapshots()) == 3


def test_the_progress_outlives_any_expiry(catalog) -> None:
    table = persons_table(catalog)
    append_round(table, [0, 1], 0)
    for number in range(3):
        table.append(person_rows([3], 10 + number))
    expire(table, FAR_MS)
    from lowtide.pipeline.table.progress import progress_of

    assert progress_of(table.refresh().metadata) is not None


# ---------------------------------------------------------------------- files that nothing names
def test_old_files_that_nothing_names_are_deleted_and_nothing_else(catalog) -> None:
    table = persons_table(catalog)
    append_round(table, [0, 1], 0)
    table.append(person_rows([3], 2))
    loose = round_files(table, person_rows([4], 3))
    (root_of(table) / "data" / "notes.txt").write_text("not the table's")
    assert delete_orphans(table, 0).files == ()
    assert delete_orphans(table, FAR_NS, dry_run=True).files == (loose[0].file_path,)
    assert delete_orphans(table, FAR_NS).files == (loose[0].file_path,)
    assert (root_of(table) / "data" / "notes.txt").exists()
    assert len(values_in(table)) == 3


def test_files_that_a_fence_has_made_invalid_go_at_any_age(catalog) -> None:
    table, other = persons_table(catalog), catalog.load_table("db.persons")
    append_round(table, [0, 1], 0)
    erase(other.refresh(), 0)
    late = round_files(catalog.load_table("db.persons"), person_rows([1], 3))
    assert delete_orphans(table, 0).files == (), "it is based on the fence"
    erase(other.refresh(), 4)
    assert not table.io.new_input(late[0].file_path).exists()


def test_a_table_whose_files_may_belong_to_others_is_refused(catalog) -> None:
    table = persons_table(catalog, **{"gc.enabled": "false"})
    append_round(table, [0], 0)
    for work in (lambda: compact(table, LARGE), lambda: expire(table, FAR_MS), lambda: delete_orphans(table, FAR_NS)):
        with pytest.raises(TableMaintenanceError, match=r"table db\.persons: its property gc\.enabled is false"):
            work()


@pytest.mark.parametrize("share", one_in(4, range(4)))
def test_a_crash_of_a_compaction_or_an_expiry_loses_no_row(tmp_path_factory, share: int) -> None:
    at = share
    while True:
        with sqlite_catalog(tmp_path_factory.mktemp("crash")) as catalog:
            table = persons_table(catalog)
            for number in range(3):
                append_round(table, [number, number], number * 2)
            before, steps = values_in(table), Steps(at)
            try:
                with crashing(steps):
                    compact(table, LARGE)
                    expire(table, FAR_MS)
            except Crash:
                table = catalog.load_table(table.name())
            else:
                assert at > 8, "there were many steps"
                return
            assert values_in(table) == before
            compact(table, LARGE)
            expire(table, FAR_MS)
            delete_orphans(table, FAR_NS)
            assert values_in(table) == before
            data = set(map(str, root_of(table).rglob("*.parquet")))
            assert data == reached_now(table.refresh()).data.keys(), "nothing is left behind"
        at += 4
