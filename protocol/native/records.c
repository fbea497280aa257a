/* Reads records, see records.h. */

#include "records.h"

#include "head.h"

#include <limits.h>
#include <string.h>

#define MICROSECONDS 1000
#define LATEST_MS (INT64_MAX / MICROSECONDS)

static bool read_varint(const uint8_t **at, const uint8_t *end, int32_t *value)
{
    const uint8_t *place = *at;
    uint32_t raw = 0;
    for (unsigned shift = 0; shift < 35; shift += 7) {
        if (place == end) {
            return false;
        }
        uint8_t byte = *place++;
        if (shift == 28 && byte > 0x0f) {
            return false; /* more than 32 bits */
        }
        if (byte == 0 && shift > 0) {
            return false; /* not the shortest form */
        }
        raw |= (uint32_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *value = (int32_t)(raw >> 1) ^ -(int32_t)(raw & 1);
            *at = place;
            return true;
        }
    }
    return false;
}

static bool read_varlong(const uint8_t **at, const uint8_t *end, int64_t *value)
{
    const uint8_t *place = *at;
    uint64_t raw = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
        if (place == end) {
            return false;
        }
        uint8_t byte = *place++;
        if (shift == 63 && byte > 0x01) {
            return false; /* more than 64 bits */
        }
        if (byte == 0 && shift > 0) {
            return false; /* not the shortest form */
        }
        raw |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *value = (int64_t)(raw >> 1) ^ -(int64_t)(raw & 1);
            *at = place;
            return true;
        }
    }
    return false;
}

/* Reads a size and that number of bytes; a size of -1 is null. */
static bool read_bytes(const uint8_t **at, const uint8_t *end, const uint8_t **bytes, int32_t *size)
{
    if (!read_varint(at, end, size) || *size < -1) {
        return false;
    }
    *bytes = *at;
    if (*size > 0) {
        if (*size > end - *at) {
            return false;
        }
        *at += *size;
    }
    return true;
}

bool read_header(const uint8_t **at, const uint8_t *end, const uint8_t **name, int32_t *name_size,
                 const uint8_t **content, int32_t *content_size)
{
    return read_bytes(at, end, name, name_size) && *name_size >= 0 && read_bytes(at, end, content, content_size);
}

bool read_record(const uint8_t **at, const uint8_t *end, struct record *record)
{
    int32_t size;
    const uint8_t *place = *at;
    if (!read_varint(&place, end, &size) || size <= 0 || size > end - place) {
        return false;
    }
    const uint8_t *stop = place + size;
    record->attributes = place++;
    if (!read_varlong(&place, stop, &record->timestamp_delta)) {
        return false;
    }
    record->after_timestamp = place;
    if (!read_varint(&place, stop, &record->offset_delta) ||
        !read_bytes(&place, stop, &record->key, &record->key_size) ||
        !read_bytes(&place, stop, &record->value, &record->value_size) ||
        !read_varint(&place, stop, &record->header_count) || record->header_count < 0) {
        return false;
    }
    record->headers = place;
    for (int32_t number = 0; number < record->header_count; number++) {
        const uint8_t *name, *content;
        int32_t name_size, content_size;
        if (!read_header(&place, stop, &name, &name_size, &content, &content_size)) {
            return false; /* at the end of the record at the latest */
        }
    }
    *at = stop;
    return place == stop;
}

bool walk_records(const uint8_t *payload, size_t size, int32_t record_count, struct walked *walked)
{
    const uint8_t *at = payload, *end = payload + size;
    *walked = (struct walked){.min_timestamp_delta = INT64_MAX, .max_timestamp_delta = INT64_MIN, .in_order = true};
    for (int32_t number = 0; number < record_count; number++) {
        struct record record;
        if (!read_record(&at, end, &record)) {
            return false;
        }
        if (record.timestamp_delta > walked->max_timestamp_delta || number == 0) {
            walked->max_timestamp_delta = record.timestamp_delta;
            walked->max_timestamp_index = number;
        }
        if (record.timestamp_delta < walked->min_timestamp_delta) {
            walked->min_timestamp_delta = record.timestamp_delta;
        }
        walked->keyless |= record.key_size < 0;
        walked->in_order &= record.offset_delta == number;
    }
    return at == end && record_count > 0;
}

bool find_record(const uint8_t *payload, size_t size, int32_t record_count, int64_t timestamp_delta,
                 int64_t offset_delta, struct found_record *found)
{
    const uint8_t *at = payload, *end = payload + size;
    *found = (struct found_record){.exists = false};
    for (int32_t number = 0; number < record_count; number++) {
        struct record record;
        if (!read_record(&at, end, &record)) {
            return false;
        }
        if (record.offset_delta >= offset_delta && record.timestamp_delta >= timestamp_delta) {
            *found = (struct found_record){
                .exists = true, .timestamp_delta = record.timestamp_delta, .offset_delta = record.offset_delta};
            return true;
        }
    }
    return at == end;
}

/* ---------------------------------------------------------------- a batch to columns */
static bool is_wanted(const struct batch *batch, const struct record *record)
{
    int64_t offset = batch->base_offset + record->offset_delta;
    return offset >= batch->from_offset && offset < batch->until_offset;
}

/* Leaves names that are not ASCII to the plain form, which checks whether they are UTF-8. */
static bool measure_headers(const struct record *record, const uint8_t *end, struct sums *sums)
{
    const uint8_t *at = record->headers;
    for (int32_t number = 0; number < record->header_count; number++) {
        const uint8_t *name, *content;
        int32_t name_size, content_size;
        if (!read_header(&at, end, &name, &name_size, &content, &content_size) || !is_ascii(name, (size_t)name_size)) {
            return false;
        }
        sums->name_bytes += name_size;
        if (content_size >= 0) {
            sums->contents++;
            sums->content_bytes += content_size;
        }
    }
    sums->headers += record->header_count;
    sums->rows_with_headers += record->header_count > 0;
    return true;
}

bool measure_batch(const struct batch *batch, struct sums *sums)
{
    const uint8_t *at = batch->payload, *end = batch->payload + batch->size;
    *sums = (struct sums){0};
    for (int32_t number = 0; number < batch->record_count; number++) {
        struct record record;
        if (!read_record(&at, end, &record) || record.offset_delta < 0 ||
            record.offset_delta > batch->last_offset_delta) {
            return false;
        }
        if (!is_wanted(batch, &record)) {
            continue;
        }
        sums->rows++;
        if (record.key_size >= 0) {
            sums->keys++;
            sums->key_bytes += record.key_size;
        }
        if (record.value_size >= 0) {
            sums->values++;
            sums->value_bytes += record.value_size;
        }
        if (batch->with_headers && !measure_headers(&record, at, sums)) {
            return false;
        }
    }
    return at == end;
}

static int64_t microseconds(int64_t base, int64_t delta)
{
    int64_t timestamp_ms;
    if (__builtin_add_overflow(base, delta, &timestamp_ms)) {
        timestamp_ms = delta < 0 ? -LATEST_MS : LATEST_MS;
    } else if (timestamp_ms > LATEST_MS) {
        timestamp_ms = LATEST_MS;
    } else if (timestamp_ms < -LATEST_MS) {
        timestamp_ms = -LATEST_MS;
    }
    return timestamp_ms * MICROSECONDS;
}

static void store_int32(uint8_t *buffer, int64_t place, int32_t value)
{
    memcpy(buffer + place * 4, &value, 4);
}

static void store_int64(uint8_t *buffer, int64_t place, int64_t value)
{
    memcpy(buffer + place * 8, &value, 8);
}

static void clear_bit(uint8_t *validity, int64_t place)
{
    validity[place >> 3] &= (uint8_t)~(1u << (place & 7));
}

static bool append(struct binary_column *column, const uint8_t *bytes, int32_t size)
{
    if (column->entries == 0 || size > column->room) {
        return false;
    }
    if (size < 0) {
        clear_bit(column->validity, column->place);
    } else if (size > 0) {
        memcpy(column->values + column->position, bytes, (size_t)size);
        column->position += size;
        column->room -= size;
    }
    column->entries--;
    column->place++;
    store_int32(column->offsets, column->place, (int32_t)column->position);
    return true;
}

static bool append_headers(struct columns *columns, const struct record *record, const uint8_t *end)
{
    const uint8_t *at = record->headers;
    for (int32_t number = 0; number < record->header_count; number++) {
        const uint8_t *name, *content;
        int32_t name_size, content_size;
        if (!read_header(&at, end, &name, &name_size, &content, &content_size) ||
            !append(&columns->names, name, name_size) || !append(&columns->contents, content, content_size)) {
            return false;
        }
    }
    if (record->header_count == 0) {
        clear_bit(columns->list_validity, columns->place);
    }
    store_int32(columns->list_offsets, columns->place + 1, (int32_t)columns->names.place);
    return true;
}

bool fill_columns(const struct batch *batch, struct columns *columns)
{
    const uint8_t *at = batch->payload, *end = batch->payload + batch->size;
    for (int32_t number = 0; number < batch->record_count; number++) {
        struct record record;
        if (!read_record(&at, end, &record)) {
            return false;
        }
        if (!is_wanted(batch, &record)) {
            continue;
        }
        if (columns->rows == 0 || !append(&columns->keys, record.key, record.key_size) ||
            !append(&columns->values, record.value, record.value_size)) {
            return false;
        }
        if (batch->with_headers && !append_headers(columns, &record, at)) {
            return false;
        }
        store_int64(columns->offsets, columns->place, batch->base_offset + record.offset_delta);
        int64_t timestamp = batch->has_append_time ? microseconds(batch->append_time, 0)
                                                   : microseconds(batch->base_timestamp, record.timestamp_delta);
        store_int64(columns->timestamps, columns->place, timestamp);
        columns->place++;
        columns->rows--;
    }
    return true;
}
