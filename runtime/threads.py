"""Starting threads: one that the system refuses is an error of the system, which says what is lacking."""

from __future__ import annotations

import errno
import threading


def start_thread(thread: threading.Thread) -> None:
    """Start a thread.

    Raises:
        OSError: EAGAIN, where the system gives the process no further thread.
    """
    try:
        thread.start()
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
        message = f"the system gives no thread for {thread.name!r}: raise the limit of processes (ulimit -u, pids.max of a container)"
        raise OSError(errno.EAGAIN, message) from error
