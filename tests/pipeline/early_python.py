"""The Python that Spark starts in tests: it connects to Spark before it imports anything large.

Spark starts a process for the Python side of a stream, and gives it ten seconds to connect; no configuration changes
that. The process imports pyspark, numpy and pyarrow first. On a busy machine that takes longer, and the query fails
with "Python worker failed to connect back". Here the connection is opened at once, and the worker's own attempt to
connect gets it. Everything else is as `python -m MODULE ARGUMENT...`.

Over TCP Spark gives ten seconds more to a secret that the worker sends after its imports. Over a Unix socket there is
none.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys

PATH = "PYTHON_WORKER_FACTORY_SOCK_PATH"
DAEMON = "pyspark.daemon"
"""It accepts connections and opens none; its workers are forked after the imports."""


def connect_early(path: str) -> None:
    """Connects now; the first socket of this process that connects to the Unix socket at `path` gets the connection."""
    early = socket.socket(socket.AF_UNIX)
    early.connect(path)
    connect = socket.socket.connect

    def connect_or_take(self: socket.socket, wanted: object) -> None:
        if wanted != path:
            connect(self, wanted)
            return
        early.setblocking(self.gettimeout() is None)
        os.dup2(early.fileno(), self.fileno())
        early.close()
        socket.socket.connect = connect

    socket.socket.connect = connect_or_take


def main() -> None:
    option, module, *arguments = sys.argv[1:]
    assert option == "-m", sys.argv
    if PATH in os.environ and module != DAEMON:
        connect_early(os.environ[PATH])
    sys.path[0] = os.getcwd()
    sys.argv = ["-m", *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
