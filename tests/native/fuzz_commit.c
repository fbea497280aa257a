/* Runs protocol/native/commit.c over mutated OffsetCommit and Heartbeat requests, without Python: `make sanitize`.

   fuzz_commit SECONDS SEED. What is looked for is what the sanitizers find; besides, what is read lies within the request, a request that
   was not mutated is read, and an answer has as many bytes as were measured. Inputs are allocated at their exact size. */

#include "commit.h"
#include "fuzzing.h"
#include "texts.h"

#define FRAME_BYTES 8192

static uint8_t *write_member(uint8_t *at, unsigned key, unsigned version, int has_instance, int is_flexible)
{
    at = write_head(at, key, version, is_flexible);
    at = write_name(at, next() % 16 ? next() % 20 : next() % 240, is_flexible);
    at = write_number(at, next(), 4);
    at = write_name(at, next() % 60, is_flexible);
    if (!has_instance) {
        return at;
    }
    return next() % 2 ? write_null(at, is_flexible) : write_name(at, next() % 20, is_flexible);
}

static size_t write_commit(uint8_t *frame)
{
    unsigned version = 2 + (unsigned)(next() % 9);
    int is_flexible = version >= 8;
    uint8_t *at = write_member(frame, 8, version, version >= 7, is_flexible);
    at = version <= 4 ? write_number(at, UINT64_MAX, 8) : at;
    at = write_length(at, 1, is_flexible, 4);
    if (version >= 10) {
        memset(at, 7, 16);
        at += 16;
    } else {
        at = write_name(at, 1 + next() % 40, is_flexible);
    }
    size_t rows = 1 + (next() % 16 ? next() % 12 : next() % COMMIT_ROWS_MAX);
    at = write_length(at, rows, is_flexible, 4);
    for (; rows > 0; rows--) {
        at = write_number(at, next() % INT32_MAX, 4);
        at = write_number(at, next(), 8);
        at = version >= 6 ? write_number(at, next(), 4) : at;
        at = next() % 2 ? write_null(at, is_flexible) : write_name(at, 0, is_flexible);
        at = write_number(at, 0, is_flexible ? 1 : 0);
    }
    return (size_t)(write_number(at, 0, is_flexible ? 2 : 0) - frame);
}

static size_t write_heartbeat(uint8_t *frame)
{
    unsigned version = (unsigned)(next() % 5);
    uint8_t *at = write_member(frame, 12, version, version >= 3, version >= 4);
    return (size_t)(write_number(at, 0, version >= 4 ? 1 : 0) - frame);
}

static void check_member(const struct member *member, const uint8_t *input, size_t size)
{
    check_text(&member->group, input, size);
    check_text(&member->id, input, size);
    check_text(&member->instance, input, size);
}

static unsigned long runs;

static void try_request(const uint8_t *frame, size_t size, int is_commit, int is_whole)
{
    runs++;
    struct small_commit commit;
    struct member member;
    uint8_t *input = copy(frame, size);
    int is_read = read_small_commit(input, size, &commit);
    CHECK(is_read || !is_whole || !is_commit);
    if (is_read) {
        check_member(&commit.member, input, size);
        check_text(&commit.topic, input, size);
        CHECK(commit.count > 0 && commit.count <= COMMIT_ROWS_MAX);
        for (int32_t number = 0; number < commit.count; number++) {
            CHECK(commit.rows[number].partition >= 0 && commit.rows[number].partition <= commit.largest_partition);
        }
        size_t answer_size = committed_size(&commit);
        uint8_t *answer = room((int64_t)answer_size);
        write_committed(&commit, answer);
        check_answer(answer, answer_size);
        free(answer);
    }
    is_read = read_small_heartbeat(input, size, &member);
    CHECK(is_read || !is_whole || is_commit);
    if (is_read) {
        uint8_t *answer = room(HEARTBEAT_ANSWER_BYTES_MAX);
        check_member(&member, input, size);
        size_t answer_size = write_alive(&member, answer);
        check_answer(answer, answer_size);
        free(answer);
    }
    free(input);
}

int main(int count, char **arguments)
{
    struct session session = begin(count, arguments);
    static uint8_t frame[FRAME_BYTES];
    for (unsigned long round = 0; (round & 1023) != 0 || time(NULL) < session.end; round++) {
        int is_commit = next() % 4 != 0;
        size_t size = is_commit ? write_commit(frame) : write_heartbeat(frame);
        try_request(frame, size, is_commit, 1);
        /* Some times more with other bytes: most of the work is to write it. */
        for (unsigned again = next() % 16; again > 0; again--) {
            try_request(frame, mutate(frame, size), is_commit, 0);
        }
    }
    return finish(&session, runs);
}
