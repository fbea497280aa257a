"""The command `lowtide` with a broker that never rewrites a segment: erased records stay in its files, and are filtered
when they are read.
"""

from __future__ import annotations

import sys

from lowtide.cli.main import main
from lowtide.storage.directory import directory_erasures

if __name__ == "__main__":
    directory_erasures.segment_to_erase = lambda _log: None
    sys.exit(main())
