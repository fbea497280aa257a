"""The disk of the power cuts: durable is what was flushed, and of the rest any part may be."""

from __future__ import annotations

import random
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.power.volatile_disk import SECTOR, VolatileDisk

SECTORS = 6
WRITES = st.tuples(st.just("write"), st.integers(0, SECTORS - 1), st.integers(1, 3), st.integers(1, 255))
STEPS = st.lists(st.one_of(WRITES, st.tuples(st.just("flush"), st.just(0), st.just(0), st.just(0))), max_size=30)


def made(tmp_path: Path, seed: int = 1) -> tuple[Path, VolatileDisk]:
    image = tmp_path / "image"
    image.write_bytes(bytes(SECTORS * SECTOR))
    return image, VolatileDisk(str(image), random.Random(seed))


@settings(max_examples=examples(200), deadline=None)
@given(steps=STEPS, seed=st.integers(0, 1000))
def test_a_sector_has_what_was_flushed_or_one_of_its_contents_since(tmp_path_factory, steps, seed):
    """And until the cut a read sees the latest."""
    image, disk = made(tmp_path_factory.mktemp("disk"), seed)
    latest, allowed = [0] * SECTORS, [{0} for _ in range(SECTORS)]
    for step, first, count, fill in steps:
        if step == "flush":
            disk.flush()
            allowed = [{value} for value in latest]
            continue
        count = min(count, SECTORS - first)
        disk.write(first * SECTOR, bytes([fill]) * count * SECTOR)
        for sector in range(first, first + count):
            latest[sector] = fill
            allowed[sector].add(fill)
        assert disk.read(0, SECTORS * SECTOR) == b"".join(bytes([value]) * SECTOR for value in latest)
    lost, kept = disk.cut()
    assert kept <= lost
    content = image.read_bytes()
    for sector in range(SECTORS):
        part = content[sector * SECTOR : (sector + 1) * SECTOR]
        assert set(part) <= allowed[sector]
        assert len(set(part)) == 1, "a sector is never torn"


def test_a_cut_may_leave_nothing_all_or_a_part(tmp_path: Path):
    shares = set()
    for seed in range(40):
        _, disk = made(tmp_path, seed)
        for sector in range(SECTORS):
            disk.write(sector * SECTOR, b"x" * SECTOR)
        lost, kept = disk.cut()
        assert lost == SECTORS
        shares.add("none" if kept == 0 else "all" if kept == SECTORS else "part")
    assert shares == {"none", "all", "part"}


def test_a_disk_that_lies_keeps_nothing(tmp_path: Path):
    image, disk = made(tmp_path)
    disk.lies = True
    disk.write(0, b"x" * SECTOR)
    disk.flush()
    assert disk.cut() == (1, 0)
    assert image.read_bytes() == bytes(SECTORS * SECTOR)


def test_a_unit_of_several_sectors_is_not_torn(tmp_path: Path):
    """Each version of it has what was written to its other sectors before."""
    for seed in range(20):
        image = tmp_path / "image"
        image.write_bytes(bytes(2 * 4096))
        disk = VolatileDisk(str(image), random.Random(seed), unit=4096)
        disk.write(0, b"a" * SECTOR)
        disk.write(SECTOR, b"b" * SECTOR)
        disk.write(4096 - SECTOR, b"c" * 2 * SECTOR)
        assert disk.read(SECTOR, 4096) == b"b" * SECTOR + bytes(4096 - 3 * SECTOR) + b"c" * 2 * SECTOR
        disk.cut()
        head = image.read_bytes()[:4096]
        a, b, c = b"a" * SECTOR, b"b" * SECTOR, b"c" * SECTOR
        rest = bytes(4096 - 3 * SECTOR)
        assert head in (bytes(4096), a + bytes(4096 - SECTOR), a + b + rest + bytes(SECTOR), a + b + rest + c)
