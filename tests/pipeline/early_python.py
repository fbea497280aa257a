"""The Python that Spark starts in tests: it connects to Spark before it imports anything large.

Spark starts a process for the Python side of a stream, and gives it ten seconds to connect; no configuration changes that. The process
imports pyspark, numpy and pyarrow first. Where cores are busy that takes longer, and the query fails with "Python worker failed to
connect back". Here the connection is there at once, and the worker's own attempt to connect gets it. Everything else is as
`python -m MODULE ARGUMENT...`.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys

PORT = "PYTHON_WORKER_FACTORY_PORT"
DAEMON = "pyspark.daemon"
"""It is connected to, and connects itself to nothing; its workers are forked when all is imported."""


def connect_early(address: tuple[str, int]) -> None:
    """Connect now; the first socket of this process that connects to `address` gets the connection."""
    early = socket.create_connection(address)
    connect = socket.socket.connect

    def connect_or_take(self: socket.socket, wanted: tuple[str, int]) -> None:
        if wanted != address:
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
    if PORT in os.environ and module != DAEMON:
        connect_early(("127.0.0.1", int(os.environ[PORT])))
    sys.path[0] = os.getcwd()
    sys.argv = ["-m", *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
