/* Writes records, see records.h. */

#include "records.h"

#include <string.h>

size_t varint_size(int64_t value)
{
    uint64_t raw = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    size_t size = 1;
    while (raw >= 0x80) {
        raw >>= 7;
        size++;
    }
    return size;
}

uint8_t *write_varint(uint8_t *at, int64_t value)
{
    uint64_t raw = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    while (raw >= 0x80) {
        *at++ = (uint8_t)(raw | 0x80);
        raw >>= 7;
    }
    *at++ = (uint8_t)raw;
    return at;
}

uint64_t field_size(int64_t size)
{
    return varint_size(size) + (size > 0 ? (uint64_t)size : 0);
}

uint8_t *write_field(uint8_t *at, const void *bytes, int64_t size)
{
    at = write_varint(at, size);
    if (size > 0) {
        memcpy(at, bytes, (size_t)size);
        at += size;
    }
    return at;
}

/* Finds the entry of a row; returns false if the buffers lack it. */
static bool find_entry(const struct binary_input *input, int64_t row, int64_t *entry, bool *is_null)
{
    int64_t entries = (int64_t)(input->offsets_size / 4) - 1;
    if (row < 0 || input->first < 0 || input->first >= entries || row >= entries - input->first) {
        return false;
    }
    *entry = input->first + row;
    *is_null = false;
    if (input->validity != NULL) {
        if ((size_t)(*entry >> 3) >= input->validity_size) {
            return false;
        }
        *is_null = !(input->validity[*entry >> 3] >> (*entry & 7) & 1);
    }
    return true;
}

static void load_range(const struct binary_input *input, int64_t entry, int32_t *start, int32_t *end)
{
    memcpy(start, input->offsets + entry * 4, 4);
    memcpy(end, input->offsets + entry * 4 + 4, 4);
}

/* Loads the bytes of a row; the size is -1 for null. */
static bool load_bytes(const struct binary_input *input, int64_t row, const uint8_t **bytes, int32_t *size)
{
    int64_t entry;
    bool is_null = true;
    *bytes = NULL;
    *size = -1;
    if (!input->is_there) {
        return true;
    }
    if (!find_entry(input, row, &entry, &is_null)) {
        return false;
    }
    if (is_null) {
        return true;
    }
    int32_t start, end;
    load_range(input, entry, &start, &end);
    if (start < 0 || end < start || (size_t)end > input->values_size) {
        return false;
    }
    *bytes = input->values + start;
    *size = end - start;
    return true;
}

/* Loads the range of a row's headers in the columns of names and contents. */
static bool load_list(const struct binary_input *lists, int64_t row, int32_t *start, int32_t *end)
{
    int64_t entry;
    bool is_null = true;
    *start = *end = 0;
    if (!lists->is_there) {
        return true;
    }
    if (!find_entry(lists, row, &entry, &is_null)) {
        return false;
    }
    if (!is_null) {
        load_range(lists, entry, start, end);
    }
    return *start >= 0 && *end >= *start;
}

struct row {
    const uint8_t *key, *value;
    int32_t key_size, value_size, headers_start, headers_end;
    int64_t number, timestamp, timestamp_delta;
    uint64_t size; /* of the record, without its length */
};

static bool load_header(const struct rows *rows, int32_t number, const uint8_t **name, int32_t *name_size,
                        const uint8_t **content, int32_t *content_size)
{
    return load_bytes(&rows->names, number, name, name_size) && *name_size >= 0 &&
           load_bytes(&rows->contents, number, content, content_size);
}

/* Loads the row for record number `delta` of the batch. Its size cannot overflow: it is the sum of fewer than 2^32
 * int32. */
static bool load_row(const struct rows *rows, int64_t delta, int64_t base_timestamp, struct row *row)
{
    int64_t place = rows->first + delta;
    row->number = place;
    if (rows->selected != NULL) {
        if ((uint64_t)place >= rows->selected_size / 8) {
            return false;
        }
        memcpy(&row->number, rows->selected + place * 8, 8);
    }
    if (row->number < 0 || row->number >= rows->row_count) {
        return false;
    }
    row->timestamp = rows->timestamp_ms;
    if (rows->timestamps != NULL) {
        if ((uint64_t)row->number >= rows->timestamps_size / 8) {
            return false;
        }
        memcpy(&row->timestamp, rows->timestamps + row->number * 8, 8);
    }
    if (__builtin_sub_overflow(row->timestamp, delta == 0 ? row->timestamp : base_timestamp, &row->timestamp_delta)) {
        return false;
    }
    if (!load_bytes(&rows->keys, row->number, &row->key, &row->key_size) ||
        !load_bytes(&rows->values, row->number, &row->value, &row->value_size) ||
        !load_list(&rows->lists, row->number, &row->headers_start, &row->headers_end)) {
        return false;
    }
    row->size = 1 + varint_size(row->timestamp_delta) + varint_size(delta) + field_size(row->key_size) +
                field_size(row->value_size) + varint_size(row->headers_end - row->headers_start);
    for (int32_t number = row->headers_start; number < row->headers_end; number++) {
        const uint8_t *name, *content;
        int32_t name_size, content_size;
        if (!load_header(rows, number, &name, &name_size, &content, &content_size)) {
            return false;
        }
        row->size += field_size(name_size) + field_size(content_size);
    }
    return row->size <= INT32_MAX;
}

bool measure_rows(const struct rows *rows, size_t room, struct written *written)
{
    *written = (struct written){0};
    if (rows->first < 0 || rows->count < 0 || rows->first > INT64_MAX - rows->count) {
        return false;
    }
    while (written->rows < rows->count && written->rows < INT32_MAX) {
        struct row row;
        if (!load_row(rows, written->rows, written->base_timestamp, &row)) {
            return false;
        }
        uint64_t size = varint_size((int64_t)row.size) + row.size;
        if (size > room - written->size) {
            break;
        }
        if (written->rows == 0) {
            written->base_timestamp = written->max_timestamp = row.timestamp;
        } else if (row.timestamp > written->max_timestamp) {
            written->max_timestamp = row.timestamp;
        }
        written->size += size;
        written->rows++;
    }
    return true;
}

bool write_rows(const struct rows *rows, const struct written *measured, uint8_t *out)
{
    uint8_t *at = out, *end = out + measured->size;
    for (int64_t delta = 0; delta < measured->rows; delta++) {
        struct row row;
        if (!load_row(rows, delta, measured->base_timestamp, &row) ||
            varint_size((int64_t)row.size) + row.size > (uint64_t)(end - at)) {
            return false;
        }
        at = write_varint(at, (int64_t)row.size);
        *at++ = 0; /* the attributes, which are unused */
        at = write_varint(at, row.timestamp_delta);
        at = write_varint(at, delta);
        at = write_field(at, row.key, row.key_size);
        at = write_field(at, row.value, row.value_size);
        at = write_varint(at, row.headers_end - row.headers_start);
        for (int32_t number = row.headers_start; number < row.headers_end; number++) {
            const uint8_t *name, *content;
            int32_t name_size, content_size;
            if (!load_header(rows, number, &name, &name_size, &content, &content_size)) {
                return false;
            }
            at = write_field(at, name, name_size);
            at = write_field(at, content, content_size);
        }
    }
    return at == end;
}
