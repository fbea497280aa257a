"""Runs the `lowtide` command, as `python -m lowtide`."""

from __future__ import annotations

import sys

from lowtide.cli.main import main

if __name__ == "__main__":  # A worker process that is spawned imports this module too.
    sys.exit(main())
