"""What a signal does in a process that a test starts, where that must not depend on who started the tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def sigint(*, ignored: bool = False) -> Iterator[None]:
    """Processes that are started meanwhile ignore SIGINT, or don't, like `pytest &` in a script, from which they would
    inherit that.

    A new program keeps what is ignored, and has the default for what is handled here. `preexec_fn` would run Python in
    a fork of this process, where the threads of other libraries are missing: the fork handlers of gRPC abort it.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
