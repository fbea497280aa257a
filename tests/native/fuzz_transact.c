/* Runs protocol/native/transact.c over mutated requests of transactions, without Python: `make sanitize`.

   fuzz_transact SECONDS SEED. What is looked for is what the sanitizers find; besides, what is read lies within the request, a request that
   was not mutated is read by its function, and an answer has as many bytes as were measured. Inputs are allocated at their exact size. */

#include "fuzzing.h"
#include "texts.h"
#include "transact.h"

#define FRAME_BYTES 8192

static uint8_t *write_producer(uint8_t *at)
{
    return write_number(write_number(at, next(), 8), next(), 2);
}

static uint8_t *write_partitions(uint8_t *at, int is_flexible)
{
    size_t rows = 1 + next() % (next() % 16 ? 6 : ADDED_ROWS_MAX);
    uint32_t partition = (uint32_t)(next() % 100);
    at = write_length(at, 1, is_flexible, 4);
    at = write_name(at, 1 + next() % 40, is_flexible);
    at = write_length(at, rows, is_flexible, 4);
    for (; rows > 0; rows--) {
        at = write_number(at, partition, 4);
        partition += 1 + (uint32_t)(next() % 3);
    }
    return write_number(at, 0, is_flexible ? 2 : 0);
}

static uint8_t *write_offsets(uint8_t *at, unsigned version, int is_flexible)
{
    at = write_length(at, 1, is_flexible, 4);
    if (version >= 6) {
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
        at = version >= 2 ? write_number(at, next(), 4) : at;
        at = next() % 2 ? write_null(at, is_flexible) : write_name(at, 0, is_flexible);
        at = write_number(at, 0, is_flexible ? 1 : 0);
    }
    return write_number(at, 0, is_flexible ? 2 : 0);
}

/* A request of the API with this number, from 0 to 3, in the order of their keys. */
static size_t write_request(uint8_t *frame, unsigned api)
{
    static const unsigned keys[] = {24, 25, 26, 28}, versions[] = {4, 5, 5, 7};
    unsigned version = (unsigned)(next() % versions[api]);
    int is_flexible = version >= 3;
    uint8_t *at = write_head(frame, keys[api], version, is_flexible);
    at = write_name(at, next() % 16 ? next() % 20 : next() % 240, is_flexible);
    if (api == 3) {
        at = write_producer(write_name(at, next() % 20, is_flexible));
        if (version >= 3) {
            at = write_name(write_number(at, next(), 4), next() % 60, is_flexible);
            at = next() % 2 ? write_null(at, is_flexible) : write_name(at, next() % 20, is_flexible);
        }
        return (size_t)(write_offsets(at, version, is_flexible) - frame);
    }
    at = write_producer(at);
    if (api == 0) {
        return (size_t)(write_partitions(at, is_flexible) - frame);
    }
    at = api == 1 ? write_name(at, next() % 40, is_flexible) : write_number(at, next() % 2, 1);
    return (size_t)(write_number(at, 0, is_flexible ? 1 : 0) - frame);
}

static void check_done(const struct transaction *transaction, const uint8_t *input, size_t size)
{
    uint8_t *answer = room(DONE_BYTES_MAX);
    check_text(&transaction->id, input, size);
    check_answer(answer, write_done(transaction, answer));
    free(answer);
}

static void check_added(const struct added_partitions *added, const uint8_t *input, size_t size)
{
    check_text(&added->transaction.id, input, size);
    check_text(&added->topic, input, size);
    CHECK(added->count > 0 && added->count <= ADDED_ROWS_MAX);
    for (int32_t number = 0; number < added->count; number++) {
        CHECK(added->rows[number] >= 0 && added->rows[number] <= added->largest_partition);
    }
    uint8_t *answer = room((int64_t)added_size(added));
    write_added(added, answer);
    check_answer(answer, added_size(added));
    free(answer);
}

static void check_commit(const struct small_commit *commit, const uint8_t *input, size_t size)
{
    check_text(&commit->member.group, input, size);
    check_text(&commit->member.id, input, size);
    check_text(&commit->member.instance, input, size);
    check_text(&commit->topic, input, size);
    CHECK(commit->count > 0 && commit->count <= COMMIT_ROWS_MAX);
    uint8_t *answer = room((int64_t)committed_size(commit));
    write_committed(commit, answer);
    check_answer(answer, committed_size(commit));
    free(answer);
}

static unsigned long runs;

/* `api` is that of the request, if it is whole, and 4 otherwise. */
static void try_request(const uint8_t *frame, size_t size, unsigned api)
{
    runs++;
    static struct added_partitions added;
    static struct small_commit commit;
    struct transaction transaction;
    struct text group;
    bool is_commit;
    uint8_t *input = copy(frame, size);
    bool is_read = read_added_partitions(input, size, &added);
    CHECK(is_read || api != 0);
    if (is_read) {
        check_added(&added, input, size);
    }
    is_read = read_added_offsets(input, size, &transaction, &group);
    CHECK(is_read || api != 1);
    if (is_read) {
        check_text(&group, input, size);
        check_done(&transaction, input, size);
    }
    is_read = read_end(input, size, &transaction, &is_commit);
    CHECK(is_read || api != 2);
    if (is_read) {
        check_done(&transaction, input, size);
    }
    is_read = read_transactional_commit(input, size, &transaction, &commit);
    CHECK(is_read || api != 3);
    if (is_read) {
        check_text(&transaction.id, input, size);
        check_commit(&commit, input, size);
    }
    free(input);
}

int main(int count, char **arguments)
{
    struct session session = begin(count, arguments);
    static uint8_t frame[FRAME_BYTES];
    for (unsigned long round = 0; (round & 1023) != 0 || time(NULL) < session.end; round++) {
        unsigned api = (unsigned)(next() % 4);
        size_t size = write_request(frame, api);
        try_request(frame, size, api);
        /* Some times more with other bytes: most of the work is to write it. */
        for (unsigned again = next() % 16; again > 0; again--) {
            try_request(frame, mutate(frame, size), 4);
        }
    }
    return finish(&session, runs);
}
