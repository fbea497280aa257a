/* Runs the C code of protocol/native over mutated batches, without Python: `make sanitize`, or with libFuzzer where clang has it.

   fuzz_walk SECONDS SEED. What is looked for is what the sanitizers find; besides, every function that answers true has written as much as
   it had measured. Inputs are allocated at their exact size, so that a byte too far is seen. */

#include "fuzzing.h"
#include "records.h"

/* ---------------------------------------------------------------- bytes to decide by */
struct source {
    const uint8_t *at, *end;
};

static uint64_t take(struct source *source, unsigned bytes)
{
    uint64_t value = 0;
    while (bytes-- > 0) {
        value = value << 8 | (source->at < source->end ? *source->at++ : 0);
    }
    return value;
}

/* Often small, sometimes anything, or close to where 64 bits end. */
static int64_t take_number(struct source *source)
{
    switch (take(source, 1) % 8) {
    case 0:
        return INT64_MAX - (int64_t)take(source, 1);
    case 1:
        return INT64_MIN + (int64_t)take(source, 1);
    case 2:
    case 3:
        return (int64_t)take(source, 8);
    default:
        return (int8_t)take(source, 1);
    }
}

/* ---------------------------------------------------------------- the functions */
static void try_columns(struct source *source, const uint8_t *payload, size_t size, int32_t count)
{
    struct batch batch = {.payload = payload,
                          .size = size,
                          .record_count = count,
                          .last_offset_delta = (int32_t)(take(source, 2) & 0x7fff),
                          .base_offset = (int64_t)(take(source, 4)),
                          .base_timestamp = take_number(source),
                          .append_time = take_number(source),
                          .has_append_time = take(source, 1) & 1,
                          .with_headers = take(source, 1) & 1,
                          .from_offset = take_number(source),
                          .until_offset = take(source, 1) & 1 ? INT64_MAX : take_number(source)};
    struct sums sums;
    if (!measure_batch(&batch, &sums)) {
        return;
    }
    struct columns columns = {.offsets = room(sums.rows * 8), .timestamps = room(sums.rows * 8), .rows = sums.rows};
    struct binary_column *binaries[] = {&columns.keys, &columns.values, &columns.names, &columns.contents};
    int64_t entries[] = {sums.rows, sums.rows, sums.headers, sums.headers};
    int64_t bytes[] = {sums.key_bytes, sums.value_bytes, sums.name_bytes, sums.content_bytes};
    for (int number = 0; number < 4; number++) {
        *binaries[number] = (struct binary_column){.validity = room((entries[number] + 7) / 8),
                                                   .offsets = room((entries[number] + 1) * 4),
                                                   .values = room(bytes[number]),
                                                   .entries = entries[number],
                                                   .room = bytes[number]};
    }
    columns.list_validity = room((sums.rows + 7) / 8);
    columns.list_offsets = room((sums.rows + 1) * 4);
    CHECK(fill_columns(&batch, &columns));
    CHECK(columns.rows == 0);
    for (int number = 0; number < 4; number++) {
        CHECK(binaries[number]->entries == 0 && binaries[number]->room == 0);
        free(binaries[number]->validity);
        free(binaries[number]->offsets);
        free(binaries[number]->values);
    }
    free(columns.offsets);
    free(columns.timestamps);
    free(columns.list_validity);
    free(columns.list_offsets);
}

#define PLACES 64

static void try_keys(struct source *source, const uint8_t *payload, size_t size, int32_t count)
{
    int64_t *places = calloc(2 * PLACES, sizeof *places);
    CHECK(places != NULL);
    struct key_table table = {.places = places, .mask = 2 * PLACES - 2, .secret = {take(source, 8), 7}};
    struct noted noted = {.records = (int64_t)(take(source, 1) % 4)};
    if (note_keys(&table, payload, size, count, take_number(source), take_number(source), PLACES / 2, &noted)) {
        CHECK(noted.records <= count && noted.added <= PLACES / 2);
    }
    struct retention retention = {.shift = take_number(source),
                                  .latest_delta = take_number(source),
                                  .drops_tombstones = take(source, 1) & 1,
                                  .sets_horizon = take(source, 1) & 1,
                                  .timestamp_shift = take_number(source)};
    uint8_t *gone = room(count);
    struct retained retained;
    if (measure_retained(&table, payload, size, count, &retention, gone, &retained)) {
        uint8_t *out = room((int64_t)retained.size);
        CHECK(write_retained(payload, size, count, &retention, gone, &retained, out));
        struct walked walked;
        CHECK(retained.records == 0 || walk_records(out, retained.size, retained.records, &walked));
        free(out);
    }
    free(gone);
    free(places);
}

/* A column of which most things are right. */
static void take_input(struct source *source, struct binary_input *input, int64_t rows)
{
    input->is_there = take(source, 1) % 8 != 0;
    int64_t entries = rows + (int64_t)(take(source, 1) % 4);
    input->first = take(source, 1) % 16 == 0 ? take_number(source) : (int64_t)(take(source, 1) % 2);
    input->offsets_size = (size_t)(entries + 1) * 4 + take(source, 1) % 2;
    uint8_t *offsets = room((int64_t)input->offsets_size);
    int32_t position = 0;
    for (int64_t entry = 0; entry <= entries; entry++) {
        uint64_t change = take(source, 1);
        int32_t stored = change % 32 == 0 ? (int32_t)take(source, 4) : change % 32 == 1 ? position + (int8_t)take(source, 1) : position;
        memcpy(offsets + entry * 4, &stored, 4);
        position += (int32_t)(take(source, 1) % 8);
    }
    input->offsets = offsets;
    input->values_size = (size_t)position;
    input->values = room(position);
    input->validity_size = (size_t)(entries + 7) / 8 - (entries > 0 && take(source, 1) % 8 == 0);
    input->validity = take(source, 1) & 1 ? room((int64_t)input->validity_size) : NULL;
}

static void try_rows(struct source *source)
{
    struct rows rows = {.row_count = (int64_t)(take(source, 1) % 16), .first = (int64_t)(take(source, 1) % 4)};
    rows.count = (int64_t)(take(source, 1) % 16);
    rows.timestamp_ms = take_number(source);
    struct binary_input *inputs[] = {&rows.keys, &rows.values, &rows.lists, &rows.names, &rows.contents};
    for (int number = 0; number < 5; number++) {
        take_input(source, inputs[number], rows.row_count);
    }
    uint8_t *selected = NULL, *timestamps = NULL;
    if (take(source, 1) & 1) {
        rows.selected_size = (size_t)(rows.first + rows.count) * 8;
        rows.selected = selected = room((int64_t)rows.selected_size);
        for (size_t place = 0; place + 8 <= rows.selected_size; place += 8) {
            int64_t number = take(source, 1) % 32 == 0 ? take_number(source) : (int64_t)(take(source, 1) % 16);
            memcpy(selected + place, &number, 8);
        }
    }
    if (take(source, 1) & 1) {
        rows.timestamps_size = (size_t)rows.row_count * 8;
        rows.timestamps = timestamps = room((int64_t)rows.timestamps_size);
    }
    struct written written;
    size_t limit = (size_t)take(source, 2);
    if (measure_rows(&rows, limit, &written)) {
        CHECK(written.size <= limit && written.rows <= rows.count);
        uint8_t *out = room((int64_t)written.size);
        CHECK(write_rows(&rows, &written, out));
        struct walked walked;
        CHECK(written.rows == 0 || (walk_records(out, written.size, (int32_t)written.rows, &walked) && walked.in_order));
        free(out);
    }
    for (int number = 0; number < 5; number++) {
        free((void *)(uintptr_t)inputs[number]->offsets);
        free((void *)(uintptr_t)inputs[number]->values);
        free((void *)(uintptr_t)inputs[number]->validity);
    }
    free(selected);
    free(timestamps);
}

#define DECIDING 192

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* The first bytes decide what is done, the others are records. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    if (size < DECIDING) {
        return 0;
    }
    struct source source = {bytes, bytes + DECIDING};
    uint8_t *payload = copy(bytes + DECIDING, size - DECIDING);
    int32_t most = (int32_t)((size - DECIDING) / SMALLEST_RECORD_BYTES), count = 0;
    const uint8_t *at = payload;
    struct record record;
    while (count < most && read_record(&at, payload + size - DECIDING, &record)) {
        count++;
    }
    /* Mostly as many as there are. */
    if (take(&source, 1) % 8 == 0 && most > 0) {
        count = (int32_t)(take(&source, 2) % (unsigned)most);
    }
    struct walked walked;
    (void)walk_records(payload, size - DECIDING, count, &walked);
    try_columns(&source, payload, size - DECIDING, count);
    try_keys(&source, payload, size - DECIDING, count);
    free(payload);
    struct source all = {bytes, bytes + size};
    try_rows(&all);
    return 0;
}

#ifndef WITH_LIBFUZZER
/* ---------------------------------------------------------------- mutated batches */
static uint8_t *write_some(uint8_t *at, int32_t size)
{
    at = write_varint(at, size);
    for (; size > 0; size--) {
        *at++ = (uint8_t)(next() % 16 == 0 ? next() : 'a' + next() % 4);
    }
    return at;
}

static int32_t some_size(void)
{
    return (int32_t)(next() % 8 == 0 ? next() % 200 : next() % 8) - 1;
}

static size_t write_batch(uint8_t *out)
{
    uint8_t *at = out;
    unsigned records = (unsigned)(next() % 8);
    for (unsigned number = 0; number < records; number++) {
        uint8_t body[4096], *end = body;
        *end++ = 0;
        end = write_varint(end, next() % 8 == 0 ? (int64_t)next() : (int64_t)(next() % 300));
        end = write_varint(end, number);
        end = write_some(end, some_size());
        end = write_some(end, some_size());
        unsigned headers = next() % 4 == 0 ? (unsigned)(next() % 4) : 0;
        end = write_varint(end, headers);
        while (headers-- > 0) {
            end = write_some(end, (int32_t)(next() % 6));
            end = write_some(end, some_size());
        }
        at = write_varint(at, end - body);
        memcpy(at, body, (size_t)(end - body));
        at += end - body;
    }
    return (size_t)(at - out);
}

int main(int count, char **arguments)
{
    struct session session = begin(count, arguments);
    unsigned long runs = 0;
    static uint8_t bytes[1 << 16];
    while ((runs & 1023) != 0 || time(NULL) < session.end) {
        for (unsigned place = 0; place < DECIDING; place++) {
            bytes[place] = (uint8_t)next();
        }
        size_t size = DECIDING + write_batch(bytes + DECIDING);
        for (uint64_t changes = next() % 4; changes > 0; changes--) {
            bytes[DECIDING + next() % (size - DECIDING + 1)] = (uint8_t)(next() % 4 == 0 ? 0xff - next() % 3 : next());
        }
        size -= next() % 4 == 0 ? next() % (size - DECIDING + 1) : 0;
        uint8_t *input = copy(bytes, size);
        (void)LLVMFuzzerTestOneInput(input, size);
        free(input);
        runs++;
    }
    return finish(&session, runs);
}
#endif
