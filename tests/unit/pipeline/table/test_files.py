"""Which files a table's metadata reach, and which are stored: in local folders and in fsspec's file systems."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table.update import SetLocationUpdate

from lowtide.pipeline.table.files import (
    UNKNOWN_NS,
    TableFilesError,
    base_snapshot_of,
    data_file_name,
    delete_files,
    file_key,
    reached_ever,
    reached_now,
    stored_files,
)
from lowtide.pipeline.table.loose import loose_files
from lowtide.pipeline.table.progress import head_id
from lowtide.pipeline.table.writing import TableTarget

from .persons import append_round, person_rows, persons_table, root_of, round_files
from .tables import sqlite_catalog


@given(st.one_of(st.none(), st.integers(1, 2**63 - 1)), st.uuids(), st.integers(0, 10**6))
def test_the_name_of_a_file_has_the_snapshot_that_it_is_based_on(base, round_id: UUID, number: int) -> None:
    name = data_file_name(base, round_id, number)
    assert base_snapshot_of(f"s3://bucket/data/day=1/{name}") == (base or 0)


@pytest.mark.parametrize(
    "name", ["00000-0-x.parquet", "lowtide-.parquet", "lowtide-12.parquet", "lowtide-1-2-3.parquet"]
)
def test_files_of_other_writers_have_no_such_name(name: str) -> None:
    assert base_snapshot_of(f"/w/data/{name}") is None


def test_the_files_of_the_job_have_such_names() -> None:
    """`writing.py` makes the names by itself: executors have no part of this module."""
    assert "base" in TableTarget.__dataclass_fields__
    name = f"lowtide-{7}-{uuid4().hex}-data-3-0-1.parquet"
    assert base_snapshot_of(f"/w/data/{name}") == 7


@pytest.mark.parametrize(
    ("one", "other"),
    [("/w/t/a.avro", "file:///w/t/a.avro"), ("s3://b/t/a", "s3a://b/t/a"), ("file:/w/a", "/w/a")],
)
def test_the_same_file_has_one_key_in_all_its_forms(one: str, other: str) -> None:
    assert file_key(one) == file_key(other)


def test_all_files_of_a_table_are_reached(catalog) -> None:
    table = persons_table(catalog)
    append_round(table, [0, 1], 0)
    table.append(person_rows([2], 2))
    table.delete("offset = 2")
    stored = {each.key for each in stored_files(table.io, table.location())}
    assert reached_ever(table).keys() == stored
    assert reached_now(table).keys() < stored
    loose = round_files(table, person_rows([3], 3))
    found = {each.key for each in stored_files(table.io, table.location())}
    assert found - reached_ever(table).keys() == {file_key(loose[0].file_path)}


def test_what_names_a_file_is_deleted_after_it(catalog) -> None:
    table = persons_table(catalog)
    append_round(table, [0, 1], 0)
    table.delete("offset = 1")
    table.maintenance.expire_snapshots().by_ids(
        [each.snapshot_id for each in table.snapshots() if each.snapshot_id != head_id(table.metadata)]
    ).commit()
    data, statistics, manifests, lists, metadata = reached_ever(table.refresh()).without(reached_now(table))
    assert [len(each) > 0 for each in (data, statistics, manifests, lists, metadata)] == [True, False, True, True, True]
    assert all(each.endswith(".parquet") for each in data)
    assert all("/snap-" in each for each in lists)
    assert all(each.endswith(".metadata.json") for each in metadata)


def test_a_missing_manifest_is_said_rather_than_its_files_taken_for_loose(catalog) -> None:
    table = persons_table(catalog)
    append_round(table, [0, 1], 0)
    table.io.delete(table.current_snapshot().manifests(table.io)[0].manifest_path)
    with pytest.raises(TableFilesError, match=r"^db\.persons: .*\.avro is missing, so what it names is unknown$"):
        reached_now(table)


def test_a_table_beside_has_files_of_its_own(catalog) -> None:
    """The table of dead letters has a name, and so a location, that begins with that of the table."""
    table, other = persons_table(catalog), persons_table(catalog, "db.persons_dead_letters")
    append_round(table, [0], 0)
    append_round(other, [0], 0)
    assert {each.key for each in stored_files(table.io, table.location())} == reached_ever(table).keys()


@pytest.mark.parametrize("io", [PyArrowFileIO(), FsspecFileIO({})])
def test_both_kinds_of_file_systems_list_the_same(tmp_path, io) -> None:
    (tmp_path / "t/data/day=1").mkdir(parents=True)
    (tmp_path / "t/data/day=1/a.parquet").write_bytes(b"abc")
    (tmp_path / "t2").mkdir()
    (tmp_path / "t2/b.parquet").write_bytes(b"")
    [found] = stored_files(io, f"file://{tmp_path}/t")
    assert found.path == f"file://{tmp_path}/t/data/day=1/a.parquet"
    assert found.size == 3
    assert 0 < found.modified_ns < UNKNOWN_NS
    assert abs(found.modified_ns - (tmp_path / "t/data/day=1/a.parquet").stat().st_mtime_ns) < 10**9


def test_listings_of_file_systems_that_keep_them_are_not_old(tmp_path, monkeypatch) -> None:
    """Those for clouds keep listings for the whole process."""
    from pyiceberg.io.fsspec import LocalFileSystem

    kept, find = {}, LocalFileSystem.find
    monkeypatch.setattr(LocalFileSystem, "find", lambda self, *what, **named: kept or kept | find(self, *what, **named))
    monkeypatch.setattr(LocalFileSystem, "invalidate_cache", lambda self, path=None: kept.clear())
    for name in ("a.parquet", "b.parquet"):
        (tmp_path / name).write_bytes(b"abc")
        found = [each.path.rpartition("/")[2] for each in stored_files(FsspecFileIO({}), f"file://{tmp_path}")]
        kept.update(find(LocalFileSystem(), str(tmp_path), detail=True))
    assert sorted(found) == ["a.parquet", "b.parquet"]


def test_a_file_system_that_lists_nothing_is_named() -> None:
    with pytest.raises(TableFilesError, match="SimpleNamespace can't list files"):
        list(stored_files(SimpleNamespace(), "s3://b/t"))


def test_deleting_again_is_no_error(catalog) -> None:
    table = persons_table(catalog)
    [file] = round_files(table, person_rows([3], 3))
    assert delete_files(table.io, [file.file_path, file.file_path]) == [file.file_path]
    assert delete_files(table.io, [file.file_path]) == []


def test_a_file_that_cannot_be_deleted_is_named_after_all_others_are_gone(catalog) -> None:
    table = persons_table(catalog)
    files = [round_files(table, person_rows([3], number))[0].file_path for number in range(2)]
    folder = root_of(table) / "data/folder.parquet"
    (folder / "inside").mkdir(parents=True)
    with pytest.raises(TableFilesError, match=r"folder\.parquet can't be deleted: "):
        delete_files(table.io, [f"file://{folder}", *files])
    assert not [each for each in files if table.io.new_input(each).exists()]


def test_a_table_behind_a_link_has_no_loose_files(tmp_path) -> None:
    """Its metadata name the files by one path, and the location may be another."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with sqlite_catalog(tmp_path / "link") as catalog:
        table = persons_table(catalog)
        append_round(table, [0, 1], 0)
        moved = SetLocationUpdate(location=table.location().replace("/link/", "/real/"))
        catalog.commit_table(table, (), (moved,))
        assert "/real/" in table.refresh().location()
        loose = loose_files(table)
        assert (loose.data, loose.manifests, loose.others) == ([], [], [])
