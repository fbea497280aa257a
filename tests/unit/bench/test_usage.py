"""Which processes belong to a broker, and their usage."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

import pytest

from bench.usage import cpu_seconds, family, parse_status, resident_bytes

LINE = "4711 (a) b (c)) S 12 4711 4711 0 -1 4194560 1 2 3 4 50 60 70 80 20 0 9 0 100 1000 10 184"

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc here")


def test_a_name_with_brackets_and_blanks_does_not_shift_the_fields():
    status = parse_status(LINE)
    assert status.parent == 12
    assert status.waited_ticks == 150


def test_descendants_belong_to_the_roots_and_no_other_process_does():
    parents = {1: 0, 10: 1, 11: 10, 12: 11, 20: 1, 21: 20}
    assert family([10], parents) == [10, 11, 12]
    assert family([10, 11], parents) == [10, 11, 12]
    assert family([20, 10], parents) == [20, 10, 21, 11, 12]


def test_without_processes_nothing_is_known():
    assert math.isnan(cpu_seconds([]))
    assert math.isnan(resident_bytes([]))


@needs_proc
def test_the_clock_of_a_process_is_its_own():
    """The kernel's clock of this process, read as for any other process, against Python's own value."""
    before = time.process_time()
    seen = cpu_seconds([os.getpid()])
    assert before <= seen
    begun = time.process_time()
    while time.process_time() - begun < 0.02:
        pass
    assert cpu_seconds([os.getpid()]) - seen >= 0.02


@needs_proc
def test_memory_is_in_bytes():
    assert 1 << 20 < resident_bytes([os.getpid()]) < 1 << 36
