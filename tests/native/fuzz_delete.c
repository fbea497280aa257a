/* Runs protocol/native/delete.c over mutated DeleteRecords requests, without Python: `make sanitize`.

   fuzz_delete SECONDS SEED. What is looked for is what the sanitizers find; besides, what is read lies within the request, a request that
   was not mutated is read, and an answer has as many bytes as were measured. Inputs are allocated at their exact size. */

#include "delete.h"
#include "fuzzing.h"

#define FRAME_BYTES 1024

static size_t write_delete(uint8_t *frame)
{
    unsigned version = (unsigned)(next() % 4);
    int is_flexible = version >= 2;
    uint8_t *at = write_head(frame, 21, version, is_flexible);
    at = write_length(at, 1, is_flexible, 4);
    at = write_name(at, 1 + (next() % 16 ? next() % 40 : next() % 249), is_flexible);
    at = write_length(at, 1, is_flexible, 4);
    at = write_number(at, next() % INT32_MAX, 4);
    at = write_number(at, next() % INT64_MAX, 8);
    at = write_number(at, 0, is_flexible ? 2 : 0);
    at = write_number(at, next(), 4);
    at = version >= 3 ? write_number(at, next() % 2, 1) : at;
    return (size_t)(write_number(at, 0, is_flexible ? 1 : 0) - frame);
}

static unsigned long runs;

static void try_request(const uint8_t *frame, size_t size, int is_whole)
{
    runs++;
    struct small_delete delete;
    uint8_t *input = copy(frame, size);
    int is_read = read_small_delete(input, size, &delete);
    CHECK(is_read || !is_whole);
    if (is_read) {
        CHECK(delete.topic >= input && delete.topic + delete.topic_size <= input + size && delete.topic_size > 0);
        CHECK(delete.client_id_size < 0 || (delete.client_id >= input && delete.client_id + delete.client_id_size <= input + size));
        CHECK(delete.partition >= 0 && delete.offset >= 0);
        size_t answer_size = deleted_size(&delete);
        uint8_t *answer = room((int64_t)answer_size);
        write_deleted(&delete, answer);
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
        size_t size = write_delete(frame);
        try_request(frame, size, 1);
        for (unsigned again = next() % 16; again > 0; again--) {
            try_request(frame, mutate(frame, size), 0);
        }
    }
    return finish(&session, runs);
}
