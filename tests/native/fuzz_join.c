/* Runs protocol/native/join.c over mutated JoinGroup and SyncGroup requests, without Python: `make sanitize`.

   fuzz_join SECONDS SEED. What is looked for is what the sanitizers find; besides, what is read lies within the request, a request that was
   not mutated is read, and answers that are made of what was read have as many bytes as were measured. Inputs are allocated at their exact
   size. */

#include "fuzzing.h"
#include "join.h"
#include "texts.h"

#define FRAME_BYTES 8192

static uint8_t *write_maybe(uint8_t *at, int is_flexible)
{
    return next() % 2 ? write_null(at, is_flexible) : write_name(at, next() % 20, is_flexible);
}

static uint8_t *write_rows(uint8_t *at, size_t rows, int is_flexible)
{
    at = write_length(at, rows, is_flexible, 4);
    for (; rows > 0; rows--) {
        size_t size = next() % 16 ? next() % 40 : next() % 300;
        at = write_name(at, next() % 20, is_flexible);
        at = write_length(at, size, is_flexible, 4);
        memset(at, (int)next(), size);
        at = write_number(at + size, 0, is_flexible ? 1 : 0);
    }
    return at;
}

static size_t write_join(uint8_t *frame)
{
    unsigned version = 2 + (unsigned)(next() % 8);
    int is_flexible = version >= 6;
    uint8_t *at = write_head(frame, 11, version, is_flexible);
    at = write_name(at, 1 + (next() % 16 ? next() % 20 : next() % 240), is_flexible);
    at = write_number(at, next(), 8);
    at = write_name(at, 1 + next() % 60, is_flexible);
    at = version >= 5 ? write_maybe(at, is_flexible) : at;
    at = write_name(at, next() % 20, is_flexible);
    at = write_rows(at, 1 + next() % (next() % 8 ? 2 : PROTOCOLS_MAX), is_flexible);
    at = version >= 8 ? write_maybe(at, is_flexible) : at;
    return (size_t)(write_number(at, 0, is_flexible ? 1 : 0) - frame);
}

static size_t write_sync(uint8_t *frame)
{
    unsigned version = (unsigned)(next() % 6);
    int is_flexible = version >= 4;
    uint8_t *at = write_head(frame, 14, version, is_flexible);
    at = write_name(at, 1 + (next() % 16 ? next() % 20 : next() % 240), is_flexible);
    at = write_number(at, next(), 4);
    at = write_name(at, 1 + next() % 60, is_flexible);
    at = version >= 3 ? write_maybe(at, is_flexible) : at;
    if (version >= 5) {
        at = write_name(write_name(at, next() % 20, is_flexible), next() % 20, is_flexible);
    }
    at = write_rows(at, next() % (next() % 8 ? 3 : 21), is_flexible);
    return (size_t)(write_number(at, 0, is_flexible ? 1 : 0) - frame);
}

static void check_rows(const struct named_bytes *rows, int32_t count, const uint8_t *input, size_t size)
{
    for (int32_t number = 0; number < count; number++) {
        CHECK(rows[number].name.size >= 0 && rows[number].content.size >= 0);
        check_text(&rows[number].name, input, size);
        check_text(&rows[number].content, input, size);
    }
}

static void check_frame(const uint8_t *answer, size_t size)
{
    CHECK(((size_t)answer[0] << 24 | (size_t)answer[1] << 16 | (size_t)answer[2] << 8 | answer[3]) == size - 4);
}

static void answer_join(const struct small_join *join)
{
    static struct joined joined;
    joined = (struct joined){.version = join->version,
                             .correlation_id = join->correlation_id,
                             .generation = (int32_t)next(),
                             .skips_assignment = join->version >= 9 && next() % 2,
                             .protocol_type = join->protocol_type,
                             .protocol_name = join->protocols[0].name,
                             .leader = join->member,
                             .member = join->member,
                             .count = (int32_t)(next() % (unsigned)(join->count + 1))};
    if (join->version >= 7 && next() % 4 == 0) {
        joined.protocol_type.size = joined.protocol_name.size = -1;
    }
    for (int32_t number = 0; number < joined.count; number++) {
        joined.members[number] =
            (struct joined_member){.id = join->member, .instance = join->instance, .metadata = join->protocols[number].content};
    }
    size_t size = joined_size(&joined);
    CHECK(size > 0);
    uint8_t *answer = room((int64_t)size);
    write_joined(&joined, answer);
    check_frame(answer, size);
    CHECK(answer[size - 1] != 0xff || join->version < 6);
    free(answer);
}

static void answer_sync(const struct small_sync *sync)
{
    static const uint8_t nothing[1];
    struct synced synced = {.version = sync->version,
                            .correlation_id = sync->correlation_id,
                            .protocol_type = sync->protocol_type,
                            .protocol_name = sync->protocol_name,
                            .assignment = {.bytes = nothing, .size = 0}};
    if (sync->count > 0) {
        synced.assignment = sync->assignments[0].content;
    }
    size_t size = synced_size(&synced);
    CHECK(size > 0);
    uint8_t *answer = room((int64_t)size);
    write_synced(&synced, answer);
    check_frame(answer, size);
    CHECK(sync->version < 4 || answer[size - 1] == 0);
    free(answer);
}

static unsigned long runs;

/* `whole`: 0 for a whole JoinGroup, 1 for a whole SyncGroup, 2 for one that was changed. */
static void try_request(const uint8_t *frame, size_t size, int whole)
{
    runs++;
    static struct small_join join;
    static struct small_sync sync;
    uint8_t *input = copy(frame, size);
    bool is_read = read_small_join(input, size, &join);
    CHECK(is_read || whole != 0);
    if (is_read) {
        check_text(&join.client, input, size);
        check_text(&join.group, input, size);
        check_text(&join.member, input, size);
        check_text(&join.instance, input, size);
        check_text(&join.protocol_type, input, size);
        CHECK(join.group.size > 0 && join.member.size > 0 && join.count > 0 && join.count <= PROTOCOLS_MAX);
        check_rows(join.protocols, join.count, input, size);
        answer_join(&join);
    }
    is_read = read_small_sync(input, size, &sync);
    CHECK(is_read || whole != 1);
    if (is_read) {
        check_text(&sync.group, input, size);
        check_text(&sync.member, input, size);
        check_text(&sync.instance, input, size);
        check_text(&sync.protocol_type, input, size);
        check_text(&sync.protocol_name, input, size);
        CHECK(sync.group.size > 0 && sync.member.size > 0 && sync.count >= 0 && sync.count <= MEMBERS_MAX);
        CHECK((sync.version >= 5) == (sync.protocol_type.size >= 0) && (sync.version >= 5) == (sync.protocol_name.size >= 0));
        check_rows(sync.assignments, sync.count, input, size);
        answer_sync(&sync);
    }
    free(input);
}

int main(int count, char **arguments)
{
    struct session session = begin(count, arguments);
    static uint8_t frame[FRAME_BYTES];
    for (unsigned long round = 0; (round & 1023) != 0 || time(NULL) < session.end; round++) {
        int api = (int)(next() % 2);
        size_t size = api == 0 ? write_join(frame) : write_sync(frame);
        CHECK(size <= FRAME_BYTES);
        try_request(frame, size, api);
        /* Some times more with other bytes: most of the work is to write it. */
        for (unsigned again = next() % 16; again > 0; again--) {
            try_request(frame, mutate(frame, size), 2);
        }
    }
    return finish(&session, runs);
}
