"""The schema `raw`: each record is a row as it is, with its value as bytes. No record is dead."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from lowtide.pipeline.table.schemas.decoding import RAW_SCHEMA, Decoded

_NAMES: Final = tuple(RAW_SCHEMA.names)


class RawDecoder:
    """Passes records on without a copy."""

    def decode(self, records: pa.RecordBatch) -> Decoded:
        return Decoded(rows=pa.Table.from_batches([records.select(_NAMES)]))
