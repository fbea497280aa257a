"""A history of one partition that survives the program: what clients did is written before it counts.

Reads are not kept. After a kill the history has all requests and their acknowledgements, so everything acknowledged is
still checked; a record that was read but never acknowledged is not known any more.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from lowtide.simulation.cluster_history import ClusterPartitionHistory


class KeptHistory(ClusterPartitionHistory):
    """Keeps its events in a file, one in each line. Begins with those of a file that exists."""

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(name)
        self._file = -1
        for line in path.read_bytes().split(b"\n") if path.exists() else ():
            with contextlib.suppress(json.JSONDecodeError):
                self._repeat(*json.loads(line))
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(self._file, b"\n")  # Ends a line that a kill truncated.

    def close(self) -> None:
        os.close(self._file)

    def _repeat(self, event: str, numbers: list[int], values: list[str]) -> None:
        given = [value.encode("latin-1") for value in values]
        match event:
            case "sent":
                self.on_send(given, numbers[0], numbers[1], ordered=False)
            case "acknowledged":
                self.on_acknowledged(numbers[0], given)
            case "refused":
                self.on_refused(given)
            case "delete":
                self.on_delete(numbers[0])
            case "deleted":
                self.on_delete_acknowledged(numbers[0], numbers[1])

    def _keep(self, event: str, *numbers: int, values: list[bytes] | None = None) -> None:
        if self._file >= 0:
            texts = [value.decode("latin-1") for value in values or ()]
            os.write(self._file, json.dumps([event, numbers, texts]).encode() + b"\n")

    def on_send(self, values: list[bytes], producer: int, first_serial: int, *, ordered: bool) -> None:
        assert not ordered, "the order of idempotent producers is not kept"
        self._keep("sent", producer, first_serial, values=values)
        super().on_send(values, producer, first_serial, ordered=ordered)

    def on_acknowledged(self, base_offset: int, values: list[bytes]) -> None:
        self._keep("acknowledged", base_offset, values=values)
        super().on_acknowledged(base_offset, values)

    def on_refused(self, values: list[bytes]) -> None:
        self._keep("refused", values=values)
        super().on_refused(values)

    def on_delete(self, offset: int | None) -> None:
        assert offset is not None, "deletes to the high watermark are not kept"
        self._keep("delete", offset)
        super().on_delete(offset)

    def on_delete_acknowledged(self, offset: int | None, low_watermark: int, sent_s: Any = float("inf")) -> int:
        assert offset is not None, "deletes to the high watermark are not kept"
        self._keep("deleted", offset, low_watermark)
        return super().on_delete_acknowledged(offset, low_watermark, sent_s)
