/* Runs protocol/native/produce.c over mutated Produce requests, without Python: `make sanitize`.

   fuzz_produce SECONDS SEED. What is looked for is what the sanitizers find; besides, what is read lies within the request, a request that
   was not mutated is read, and an answer has as many bytes as were measured. Inputs are allocated at their exact size. */

#include "fuzzing.h"
#include "head.h"
#include "produce.h"
#include "records.h"

#define FRAME_BYTES 4096
#define FRAMES_MAX 20

static uint8_t *write_letters(uint8_t *at, size_t size)
{
    memset(at, 'a' + (int)(next() % 26), size);
    return at + size;
}

static uint8_t *write_batch(uint8_t *start, int is_transactional)
{
    static const uint8_t zeros[61];
    uint8_t *at = start + sizeof zeros;
    unsigned records = 1 + (unsigned)(next() % 3);
    int64_t latest = 0;
    memcpy(start, zeros, sizeof zeros);
    for (unsigned number = 0; number < records; number++) {
        uint8_t body[256], *end = body;
        int64_t delta = (int64_t)(next() % 200);
        latest = number == 0 || delta > latest ? delta : latest;
        *end++ = 0;
        end = write_varint(end, delta);
        end = write_varint(end, number);
        end = next() % 2 ? write_field(end, NULL, -1) : write_field(end, zeros, (int64_t)(next() % 8));
        end = write_field(end, zeros, (int64_t)(next() % 60));
        end = write_varint(end, 0);
        at = write_varint(at, end - body);
        memcpy(at, body, (size_t)(end - body));
        at += end - body;
    }
    int64_t base = 1000;
    (void)write_number(start + 8, (uint64_t)(at - start - 12), 4);
    start[16] = 2;
    (void)write_number(start + 23, records - 1, 4);
    (void)write_number(start + 27, (uint64_t)base, 8);
    (void)write_number(start + 35, (uint64_t)(base + latest), 8);
    int is_idempotent = is_transactional || next() % 2;
    (void)write_number(start + 21, is_transactional ? TRANSACTIONAL : 0, 2);
    (void)write_number(start + 43, is_idempotent ? 7 : UINT64_MAX, 8);
    (void)write_number(start + 53, is_idempotent ? 0 : UINT64_MAX, 4);
    (void)write_number(start + 57, records, 4);
    return at;
}

static size_t write_request(uint8_t *frame)
{
    uint8_t *at = frame, batch[1024];
    int version = 3 + (int)(next() % 11), is_flexible = version >= 9;
    at = write_number(at, 0, 2);
    at = write_number(at, (uint64_t)version, 2);
    at = write_number(at, next(), 4);
    size_t client_id = next() % 20;
    at = next() % 4 ? write_letters(write_number(at, client_id, 2), client_id) : write_number(at, UINT16_MAX, 2);
    at = write_number(at, 0, is_flexible ? 1 : 0);
    int is_transactional = next() % 2;
    at = is_transactional ? write_name(at, 1 + (next() % 16 ? next() % 20 : next() % 240), is_flexible) : write_null(at, is_flexible);
    at = write_number(at, next() % 2 ? 1 : UINT16_MAX, 2);
    at = write_number(at, next(), 4);
    at = write_length(at, 1, is_flexible, 4);
    size_t name = 1 + (next() % 16 ? next() % 20 : next() % 240);
    at = version >= 13 ? write_letters(at, 16) : write_letters(write_length(at, name, is_flexible, 2), name);
    at = write_length(at, 1, is_flexible, 4);
    at = write_number(at, next() % 3, 4);
    size_t size = (size_t)(write_batch(batch, is_transactional) - batch);
    at = write_length(at, size, is_flexible, 4);
    memcpy(at, batch, size);
    at += size;
    return (size_t)((is_flexible ? write_number(at, 0, 3) : at) - frame);
}

static void try_answer(const struct small_produce *produce)
{
    struct produced produced = {.version = produce->version,
                                .correlation_id = produce->correlation_id,
                                .topic = produce->topic,
                                .topic_size = produce->topic_size,
                                .partition = produce->partition,
                                .base_offset = (int64_t)next(),
                                .log_append_time_ms = -1,
                                .log_start_offset = (int64_t)next()};
    size_t size = produced_size(&produced);
    CHECK(size > 0);
    uint8_t *answer = room((int64_t)size);
    write_produced(&produced, answer);
    CHECK(answer[0] == 0 && ((size_t)answer[1] << 16 | (size_t)answer[2] << 8 | answer[3]) == size - 4);
    CHECK(answer[size - 1] == 0);
    free(answer);
}

static unsigned long runs;

static void try_request(const uint8_t *frame, size_t size, int is_whole)
{
    runs++;
    struct small_produce produce;
    struct request_head head;
    uint8_t *input = copy(frame, size);
    for (int is_flexible = 0; is_flexible < 2; is_flexible++) {
        CHECK(!read_request_head(input, size, is_flexible, &head) || (head.size <= size && head.client_id_size < (int64_t)head.size));
    }
    int is_read = read_small_produce(input, size, &produce);
    CHECK(is_read || !is_whole);
    if (is_read) {
        const struct small_batch *batch = &produce.batch;
        CHECK(produce.topic >= input && produce.topic + produce.topic_size <= batch->start);
        CHECK(batch->start + batch->size <= input + size && batch->size <= SMALL_BATCH_BYTES);
        const struct text *id = &produce.transactional_id;
        CHECK(id->size < 0 ? batch->attributes == 0 : batch->attributes == TRANSACTIONAL && batch->producer_id >= 0);
        CHECK(id->size < 0 || (id->size > 0 && id->bytes >= input && id->bytes + id->size <= produce.topic));
        CHECK(batch->record_count > 0 && batch->min_timestamp <= batch->max_timestamp);
        CHECK(batch->offset_delta_of_max_timestamp <= batch->last_offset_delta);
        try_answer(&produce);
    }
    free(input);
}

/* Several of a request, each behind its length: of an idempotent producer with the sequences that follow. */
static size_t write_several(uint8_t *bytes, const uint8_t *frame, size_t size, size_t count)
{
    uint8_t *at = bytes;
    struct small_produce produce;
    CHECK(read_small_produce(frame, size, &produce));
    size_t sequence = (size_t)(produce.batch.start - frame) + 53;
    for (size_t number = 0; number < count; number++) {
        at = write_number(at, size, 4);
        memcpy(at, frame, size);
        (void)write_number(at + 4, number, 4);
        if (produce.batch.producer_id >= 0) {
            (void)write_number(at + sequence, number * (size_t)produce.batch.record_count, 4);
        }
        at += size;
    }
    return (size_t)(at - bytes);
}

static void check_group(const struct produce_set *set, const struct produce_group *group, const uint8_t *input, size_t size)
{
    const struct small_produce *first = &set->requests[group->members[0]];
    CHECK(group->count > 0 && group->begins[0]);
    for (size_t number = 0; number < group->count; number++) {
        size_t place = group->members[number];
        const struct small_produce *request = &set->requests[place];
        CHECK(place < set->count && (number == 0 || place > group->members[number - 1]));
        CHECK(set->ends[place] <= size && (place == 0 || set->ends[place - 1] < set->ends[place]));
        CHECK(request->topic > input && request->topic + request->topic_size <= request->batch.start);
        CHECK(request->batch.start + request->batch.size <= input + set->ends[place]);
        CHECK(request->version == first->version && request->partition == first->partition);
        CHECK(group->count == 1 || (request->transactional_id.size < 0 && request->batch.attributes == 0));
    }
}

/* `whole`: how many requests were written, 0 where they were changed. `is_one`: as of one connection, else of several. */
static void try_set(const uint8_t *bytes, size_t size, size_t whole, bool is_one)
{
    runs++;
    static struct produce_set set;
    uint8_t *input = copy(bytes, size);
    size_t frame_max = whole == 0 && next() % 8 == 0 ? next() % 300 : FRAME_BYTES, members = 0;
    read_produce_set(input, size, frame_max, is_one, &set);
    CHECK(set.count <= (is_one ? REQUESTS_OF_CONNECTION_MAX : REQUESTS_MAX) && set.group_count <= (is_one ? 1 : set.count));
    for (size_t number = 0; number < set.group_count; number++) {
        check_group(&set, &set.groups[number], input, size);
        members += set.groups[number].count;
    }
    CHECK(members <= set.count);
    if (whole > 0) {
        bool is_transactional = set.requests[0].transactional_id.size >= 0;
        size_t most = is_one && is_transactional ? 1 : is_one && whole > REQUESTS_OF_CONNECTION_MAX ? REQUESTS_OF_CONNECTION_MAX : whole;
        CHECK(members == most);
    }
    free(input);
}

int main(int count, char **arguments)
{
    struct session session = begin(count, arguments);
    static uint8_t frame[FRAME_BYTES], bytes[FRAMES_MAX * FRAME_BYTES];
    for (unsigned long round = 0; (round & 1023) != 0 || time(NULL) < session.end; round++) {
        size_t size = write_request(frame);
        try_request(frame, size, 1);
        size_t frames = 1 + (next() % 8 ? next() % 4 : next() % FRAMES_MAX), together = write_several(bytes, frame, size, frames);
        try_set(bytes, together, frames, true);
        try_set(bytes, together, frames, false);
        for (unsigned again = next() % 8; again > 0; again--) {
            size_t changed = mutate(bytes, together);
            try_set(bytes, changed, 0, next() % 2);
        }
        /* Some times more with other bytes: most of the work is to write it. */
        for (unsigned again = next() % 16; again > 0; again--) {
            try_request(frame, mutate(frame, size), 0);
        }
    }
    return finish(&session, runs);
}
