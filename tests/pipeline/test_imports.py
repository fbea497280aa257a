"""Each query starts a process of the driver that only plans: it imports no code that reads or trims."""

from __future__ import annotations

import subprocess
import sys

PLAN = "import sys, lowtide.pipeline.stream_reader, lowtide.pipeline.stream_positions; print(*sys.modules)"

NOT_FOR_PLANNING = {
    "lowtide.admin.blocking",
    "lowtide.pipeline.arrow_batches",
    "lowtide.pipeline.fetching",
    "lowtide.pipeline.trim",
    "lowtide.protocol.crc32c",
}


def test_the_process_that_plans_imports_neither_what_reads_nor_what_trims():
    ended = subprocess.run([sys.executable, "-c", PLAN], capture_output=True, text=True, check=True)
    imported = set(ended.stdout.split())
    assert "lowtide.pipeline.cluster" in imported
    assert not imported & NOT_FOR_PLANNING
