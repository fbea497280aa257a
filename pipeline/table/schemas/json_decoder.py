"""Decodes JSON objects to columns.

The usual case is fast: PyArrow parses the values of many records together, as the types that the table has. It refuses
them all for one that doesn't fit. Then ever shorter runs are tried, and the records of the shortest are read one by one
by `ObjectReader`, which finds the dead ones, their reasons, and what the table lacks.

Each value is wrapped in an object of its own line before it is parsed. A record can't begin or end another one's row:
where a wrapper's brace closes, the parser is outside of all objects or the text is invalid, so each record gives at
least one row, and as many rows as records means one for each. Bytes of 0 would end the text: such values are no JSON,
and are left out.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from lowtide.pipeline.table.schemas.assembling import dead_letters, table_of, value_fields
from lowtide.pipeline.table.schemas.conforming import conform
from lowtide.pipeline.table.schemas.decoding import Decoded
from lowtide.pipeline.table.schemas.evolution import columns_counted
from lowtide.pipeline.table.schemas.json_objects import SINGLE, NotAccepted, ObjectReader
from lowtide.pipeline.table.schemas.names import ColumnNames
from lowtide.pipeline.table.schemas.tallies import Sightings, count, parsed_as

_RUN: Final = 32
_LONGEST_RUN: Final = 1_024
"""Records that are read one by one when they can't be parsed together. The run is longer after runs that couldn't."""

_HEADER_BYTES: Final = 5
"""Zero and the id of a schema, which Confluent's serializer for JSON Schema writes before the object."""

_MAX_BYTES: Final = 1 << 30
"""Bytes of values that are parsed together. PyArrow's offsets have 31 bits."""

_NO_NUMBER: Final = "[nN]a[nN]|Inf"
_SUSPICIOUS: Final = {pa.float64(): f"[0-9]{{16}}|{_NO_NUMBER}", pa.float32(): f"[0-9]{{8}}|[eE]|{_NO_NUMBER}"}
"""Texts that may hold an integer that a type can't keep, a number beyond its range, or one that JSON doesn't have."""


class JsonDecoder:
    """Decodes the values of one task. What it learns of new fields from a batch makes the next one fast."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._columns = value_fields(schema)
        self._reader = ObjectReader(self._columns, ColumnNames(schema))
        self._seen = Sightings()
        """All that values had and the table lacks. It says as what values are parsed."""
        self._parsed_as = parsed_as(self._seen.tally, self._columns)

    def decode(self, records: pa.RecordBatch) -> Decoded:
        batch = _Batch(_texts(records["value"]))
        self._find_zeros(batch)
        position, length, run = 0, len(batch.places), _RUN
        while position < len(batch.places):
            places = batch.places[position : position + length]
            parsed = self._parsed(batch, places)
            if parsed is not None:
                batch.parsed.append(parsed)
                count(parsed, pa.struct(self._columns), batch.seen.tally)
                run = _RUN
            elif len(places) > run:
                length = max(run, len(places) // 4)
                continue
            else:
                self._read(batch, places)
                run = min(2 * run, _LONGEST_RUN)
            position += len(places)
            length = 4 * len(places)
        new_columns = columns_counted(list(self._schema), batch.seen.tally)
        dead = dead_letters(records, batch.dead)
        if len(new_columns):
            return Decoded(rows=None, new_columns=new_columns, dead=dead)
        return Decoded(rows=table_of(records, batch.dead, self._conformed(batch), self._schema), dead=dead)

    def _find_zeros(self, batch: _Batch) -> None:
        """Leaves out the values with a byte of 0."""
        found = pc.greater_equal(pc.find_substring(batch.texts, b"\0"), 0).to_numpy(zero_copy_only=False)
        for place in np.flatnonzero(found).tolist():
            batch.dead[place] = "the value is not JSON: it has a byte of 0"
        batch.places = batch.places[~found]

    def _parsed(self, batch: _Batch, places: np.ndarray) -> pa.StructArray | None:
        """Parses the values of some records together. Returns None if they must be read one by one."""
        texts = _taken(batch.texts, places)
        parsed = parse_together(texts, self._parsed_as)
        if parsed is None or parsed.null_count:
            return None
        for kind in _extreme_types(parsed):
            odd = places[pc.match_substring_regex(texts, _SUSPICIOUS[kind]).to_numpy(zero_copy_only=False)]
            if any(self._reason(batch, place) is not None for place in odd.tolist()):
                return None
        return parsed

    def _reason(self, batch: _Batch, place: int) -> str | None:
        """Returns why a record becomes a dead letter; None if it becomes a row."""
        try:
            self._reader.read(batch.texts[place].as_py())
        except NotAccepted as error:
            return str(error)
        return None

    def _read(self, batch: _Batch, places: np.ndarray) -> None:
        """Reads records one by one. Parses those that aren't dead, unless the table lacks something of theirs."""
        good = []
        is_complete, is_news = True, False
        for place in places.tolist():
            try:
                seen = self._reader.read(batch.texts[place].as_py())
            except NotAccepted as error:
                batch.dead[place] = str(error)
                continue
            good.append(place)
            if seen:
                batch.seen.add(seen)
                is_news |= self._seen.add(seen)
                is_complete &= not any(kind in SINGLE for _, kind in seen)
        if is_news:
            self._parsed_as = parsed_as(self._seen.tally, self._columns)
        if is_complete and good:
            batch.parsed += self._parsed_singly(batch, good)

    def _parsed_singly(self, batch: _Batch, good: list[int]) -> list[pa.StructArray]:
        """Parses records that have been read. If PyArrow refuses one nevertheless, that one is dead.

        Of what has no column, such as an empty object in one record and an empty array in another, each is parsed as
        what it has itself.
        """
        parsed = parse_together(_taken(batch.texts, np.array(good)), self._parsed_as)
        if parsed is not None:
            return [parsed]
        found = []
        for place in good:
            text = _taken(batch.texts, np.array([place]))
            one = parse_together(text, self._parsed_as)
            if one is None:
                own = Sightings()
                own.add(self._reader.read(text[0].as_py()))
                one = parse_together(text, parsed_as(own.tally, self._columns))
            if one is None:
                batch.dead[place] = "the value is JSON, but PyArrow can't parse it"
            else:
                found.append(one)
        return found

    def _conformed(self, batch: _Batch) -> pa.StructArray:
        """Returns the values as the columns of the table."""
        kind = pa.struct(self._columns)
        return pa.concat_arrays([conform(one, kind) for one in batch.parsed] or [pa.array([], kind)])


class _Batch:
    """The values of a batch while they are decoded."""

    def __init__(self, texts: pa.Array) -> None:
        self.texts = texts
        self.places = np.arange(len(texts))
        """The records to parse, in their order."""
        self.parsed: list[pa.StructArray] = []
        """Values of the records that aren't dead, in their order."""
        self.dead: dict[int, str] = {}
        self.seen = Sightings()


def _texts(values: pa.Array) -> pa.Array:
    """Returns the JSON text of each value: without the bytes that name a registry's schema, and `{}` for a null."""
    if values.null_count:
        values = pc.fill_null(values, b"{}")
    framed = pc.and_(pc.starts_with(values, b"\0"), pc.greater_equal(pc.binary_length(values), _HEADER_BYTES))
    if pc.any(framed).as_py():
        values = pc.replace_with_mask(values, framed, pc.binary_slice(values.filter(framed), _HEADER_BYTES))
    return values


def _taken(texts: pa.Array, places: np.ndarray) -> pa.Array:
    if len(places) and places[-1] - places[0] + 1 == len(places):
        return texts.slice(int(places[0]), len(places))
    return texts.take(pa.array(places))


def parse_together(texts: pa.Array, kind: pa.DataType) -> pa.StructArray | None:
    """Parses JSON texts as a struct type. Returns None if one is invalid or doesn't fit."""
    if not len(texts) or texts.nbytes > _MAX_BYTES:
        return None if len(texts) else pa.array([], kind)
    if not kind.num_fields:
        kind = pa.struct([pa.field("", pa.null())])
    lines = pc.binary_join_element_wise(_BEFORE, texts, _AFTER, b"")
    buffer = lines.buffers()[2]
    try:
        lines.cast(pa.string())
        found = arrow_json.read_json(
            pa.BufferReader(buffer),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=buffer.size + 1),
            parse_options=arrow_json.ParseOptions(
                explicit_schema=pa.schema([pa.field("v", kind)]), unexpected_field_behavior="error"
            ),
        )
    except pa.ArrowInvalid:
        return None
    if found.num_rows != len(texts):
        return None
    (parsed,) = found["v"].chunks
    return _with_nulls(parsed)


def _with_nulls(array: pa.Array) -> pa.Array:
    """Returns the array with as many nulls as its lists name.

    PyArrow's JSON reader counts only one null of each list of nulls, which makes an invalid array.
    """
    kind = array.type
    if pa.types.is_list(kind):
        count = array.offsets[-1].as_py()
        child = pa.nulls(count) if pa.types.is_null(kind.value_type) else _with_nulls(array.values)
        return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], children=[child])
    if pa.types.is_struct(kind):
        children = [
            pa.nulls(len(array)) if pa.types.is_null(field.type) else _with_nulls(array.field(number))
            for number, field in enumerate(kind)
        ]
        return pa.Array.from_buffers(kind, len(array), array.buffers()[:1], children=children)
    return array


_BEFORE: Final = pa.scalar(b'{"v":')
_AFTER: Final = pa.scalar(b"}\n")


def _extreme_types(array: pa.Array) -> set[pa.DataType]:
    """Returns double or float if one is so large that an integer may have lost digits, or is no number of JSON."""
    kind = array.type
    if kind in _EXACT:
        found = pc.min_max(array)
        low, high = found["min"].as_py(), found["max"].as_py()
        is_usual = (low is None or -_EXACT[kind] < low <= high < _EXACT[kind]) and not pc.any(pc.is_nan(array)).as_py()
        return set() if is_usual else {kind}
    if pa.types.is_struct(kind):
        return {one for index in range(kind.num_fields) for one in _extreme_types(array.field(index))}
    return _extreme_types(array.flatten()) if pa.types.is_list(kind) else set()


_EXACT: Final = {pa.float64(): 2.0**53, pa.float32(): 2.0**24}
"""Integers below are kept as they are."""
