/* Reads and writes the records of a batch without an object for each.

   The bytes are untrusted. Each function stays within the given range and returns false for records that differ from
   those of Kafka's clients; the plain form decides about these. Integers are zigzag varints of at most five bytes (ten
   for timestamps). Sizes are compared with the rest before they are added. */

#ifndef LOWTIDE_RECORDS_H
#define LOWTIDE_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SMALLEST_RECORD_BYTES 7

struct record {
    const uint8_t *attributes;
    int64_t timestamp_delta;
    const uint8_t *after_timestamp;
    int32_t offset_delta;
    int32_t key_size; /* -1 for null, like the size of the value */
    const uint8_t *key;
    int32_t value_size;
    const uint8_t *value;
    int32_t header_count;
    const uint8_t *headers;
};

/* Reads the record at `*at`, and moves that to its end. `end` is that of the payload. */
bool read_record(const uint8_t **at, const uint8_t *end, struct record *record);

/* Reads the header at `*at` of a record. A content size of -1 is null; a name is never null. */
bool read_header(const uint8_t **at, const uint8_t *end, const uint8_t **name, int32_t *name_size,
                 const uint8_t **content, int32_t *content_size);

size_t varint_size(int64_t value);
uint8_t *write_varint(uint8_t *at, int64_t value);

/* A key, a value, or a part of a header, after its size; a size of -1 is null. */
uint64_t field_size(int64_t size);
uint8_t *write_field(uint8_t *at, const void *bytes, int64_t size);

/* Properties of the records of a batch. */
struct walked {
    int64_t min_timestamp_delta, max_timestamp_delta;
    int32_t max_timestamp_index;
    bool keyless, in_order;
};
bool walk_records(const uint8_t *payload, size_t size, int32_t record_count, struct walked *walked);

/* Finds the first record with at least these deltas; later records are not checked. */
struct found_record {
    bool exists;
    int64_t timestamp_delta;
    int32_t offset_delta;
};
bool find_record(const uint8_t *payload, size_t size, int32_t record_count, int64_t timestamp_delta,
                 int64_t offset_delta, struct found_record *found);

/* ---------------------------------------------------------------- a batch to columns */
struct batch {
    const uint8_t *payload;
    size_t size;
    int32_t record_count, last_offset_delta;
    int64_t base_offset; /* at least 0; base_offset + last_offset_delta is an int64 */
    int64_t base_timestamp, append_time;
    bool has_append_time, with_headers;
    int64_t from_offset, until_offset;
};

struct sums {
    int64_t rows, keys, key_bytes, values, value_bytes; /* keys and values without nulls */
    int64_t rows_with_headers, headers, name_bytes, contents, content_bytes;
};
bool measure_batch(const struct batch *batch, struct sums *sums);

/* A column with space for `entries` more, whose bits in the bitmap are set. `place` is the index of the next entry. */
struct binary_column {
    uint8_t *validity, *offsets, *values;
    int64_t place, entries, position, room;
};
struct columns {
    uint8_t *offsets, *timestamps;
    int64_t place, rows;
    struct binary_column keys, values, names, contents;
    uint8_t *list_validity, *list_offsets;
};
/* Appends what was measured. Returns false if the bytes have changed; the columns are invalid then. */
bool fill_columns(const struct batch *batch, struct columns *columns);

/* ---------------------------------------------------------------- columns to a batch */
struct binary_input {
    bool is_there;
    const uint8_t *offsets, *values, *validity; /* validity: NULL if nothing is null */
    size_t offsets_size, values_size, validity_size;
    int64_t first;
};
struct rows {
    int64_t row_count;
    struct binary_input keys, values;
    struct binary_input lists; /* the lists of headers, without values */
    struct binary_input names, contents;
    const uint8_t *timestamps, *selected; /* int64; may be NULL */
    size_t timestamps_size, selected_size;
    int64_t first, count, timestamp_ms;
};
struct written {
    int64_t rows, base_timestamp, max_timestamp;
    size_t size;
};
/* Measures the rows whose records fit into `room` bytes. */
bool measure_rows(const struct rows *rows, size_t room, struct written *written);
/* Writes the measured rows to `out`, which has the measured size. */
bool write_rows(const struct rows *rows, const struct written *measured, uint8_t *out);

/* ---------------------------------------------------------------- the last offset of each key */
/* A hash table with open addressing: pairs of a value and the hash of a key. A value of 0 is a free place; the lower 24
   bits of others are a second hash. */
struct key_table {
    int64_t *places;
    size_t mask; /* of the index of a pair: twice their number (a power of two), minus two */
    uint64_t secret[2];
};
struct noted {
    int64_t records;    /* the number of checked records */
    int64_t added;      /* the number of new keys */
    int64_t last_delta; /* of the last record if all were checked; otherwise of the last added one, or -1 */
};
#define CHECK_BITS 24

void hash_key(const struct key_table *table, const uint8_t *key, size_t size, uint64_t *hash, uint64_t *check);

/* Adds the records from number `noted->records` on, with a delta of at least `first_delta`, until there is no room. */
bool note_keys(const struct key_table *table, const uint8_t *payload, size_t size, int32_t record_count, int64_t shift,
               int64_t first_delta, int64_t room, struct noted *noted);

struct retention {
    int64_t shift, latest_delta;
    bool drops_tombstones;
    bool sets_horizon; /* if a tombstone stays; timestamps then have another base */
    int64_t timestamp_shift;
};
struct retained {
    int32_t records;
    bool has_tombstones, is_rewritten;
    int64_t max_timestamp_delta;
    size_t size;
};
/* Marks the records to remove in `gone`, a byte for each. */
bool measure_retained(const struct key_table *table, const uint8_t *payload, size_t size, int32_t record_count,
                      const struct retention *retention, uint8_t *gone, struct retained *retained);
bool write_retained(const uint8_t *payload, size_t size, int32_t record_count, const struct retention *retention,
                    const uint8_t *gone, const struct retained *retained, uint8_t *out);

#endif
