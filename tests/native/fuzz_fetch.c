/* Runs protocol/native/fetch.c over mutated Fetch requests, without Python: `make sanitize`.

   fuzz_fetch SECONDS SEED. What is looked for is what the sanitizers find; besides, what is read lies within the request, a request that was
   not mutated is read if its partitions are few, and an answer that is made of what was read, and of more, has its size, and its records
   where they belong. Inputs, and the room for answers, are allocated at their exact size. */

#include "fetch.h"
#include "fuzzing.h"
#include "texts.h"

#define FRAME_BYTES 65536
/* More than are read. */
#define WRITTEN_ROWS_MAX (FETCH_ROWS_MAX + 2)

/* ---------------------------------------------------------------- requests */
static uint8_t *write_partition(uint8_t *at, unsigned version)
{
    at = write_number(at, next() % INT32_MAX, 4);
    at = version >= 9 ? write_number(at, next(), 4) : at;
    at = write_number(at, next(), 8);
    at = version >= 12 ? write_number(at, next(), 4) : at;
    at = version >= 5 ? write_number(at, next(), 8) : at;
    at = write_number(at, next() % INT32_MAX, 4);
    return write_number(at, 0, version >= 12 ? 1 : 0);
}

/* So many rows, in topics of which some have none. */
static uint8_t *write_topics(uint8_t *at, unsigned version, size_t rows)
{
    int is_flexible = version >= 12;
    size_t topics = rows ? 1 + next() % (rows < 4 ? rows : 4) : next() % 3;
    at = write_length(at, topics, is_flexible, 4);
    for (; topics > 0; topics--) {
        if (version >= 13) {
            memset(at, 1 + (int)(next() % 255), 16);
            at += 16;
        } else {
            at = write_name(at, 1 + (next() % 16 ? next() % 40 : next() % 300), is_flexible);
        }
        size_t count = topics == 1 ? rows : next() % (rows + 1);
        at = write_length(at, count, is_flexible, 4);
        for (rows -= count; count > 0; count--) {
            at = write_partition(at, version);
        }
        at = write_number(at, 0, is_flexible ? 1 : 0);
    }
    return at;
}

static uint8_t *write_tags(uint8_t *at, unsigned version)
{
    if (version < 15 || next() % 2) {
        return write_number(at, 0, version >= 12 ? 1 : 0);
    }
    at = write_number(at, 1 << 16 | 1 << 8 | 13, 3);
    return write_number(write_number(write_number(at, next(), 4), next(), 8), 0, 1);
}

static size_t write_fetch(uint8_t *frame, size_t rows)
{
    unsigned version = FETCH_FIRST_VERSION + (unsigned)(next() % (FETCH_LAST_VERSION - FETCH_FIRST_VERSION + 1));
    int is_flexible = version >= 12;
    uint8_t *at = write_head(frame, 1, version, is_flexible);
    at = version < 15 ? write_number(at, next(), 4) : at;
    at = write_number(write_number(at, next(), 4), next(), 4);
    at = write_number(write_number(at, next() % INT32_MAX, 4), next() % 2, 1);
    at = version >= 7 ? write_number(at, next(), 8) : at;
    at = write_topics(at, version, rows);
    at = version >= 7 ? write_length(at, 0, is_flexible, 4) : at;
    at = version >= 11 ? write_name(at, next() % 20, is_flexible) : at;
    return (size_t)(write_tags(at, version) - frame);
}

static void check_fetch(const struct small_fetch *fetch, const uint8_t *input, size_t size)
{
    CHECK(fetch->version >= FETCH_FIRST_VERSION && fetch->version <= FETCH_LAST_VERSION && fetch->bytes_max >= 0);
    check_text(&fetch->client, input, size);
    check_text(&fetch->rack, input, size);
    CHECK(fetch->rack.size >= 0 && fetch->count >= 0 && fetch->count <= FETCH_ROWS_MAX);
    for (int32_t number = 0; number < fetch->count; number++) {
        const struct fetched_partition *row = &fetch->rows[number];
        check_text(&row->topic, input, size);
        CHECK(row->topic.size > 0 && (fetch->version < FETCH_TOPIC_IDS_SINCE || row->topic.size == FETCH_TOPIC_ID_BYTES));
        CHECK(row->partition >= 0 && row->bytes_max >= 0);
    }
}

/* ---------------------------------------------------------------- answers */
static int32_t any_records(void)
{
    unsigned kind = next() % 64;
    return (int32_t)(kind == 0 ? INT32_MAX - next() % 4096 : kind < 24 ? 0 : kind < 48 ? next() % 300 : next() % (1 << 24));
}

static void add_row(struct small_fetched *fetched, const struct text *topic, int32_t partition)
{
    struct answered_topic *last = fetched->topics + fetched->topic_count;
    if (fetched->topic_count > 0 && last[-1].topic.bytes == topic->bytes && last[-1].topic.size == topic->size) {
        last[-1].count++;
    } else {
        *last = (struct answered_topic){.topic = *topic, .first = fetched->row_count, .count = 1};
        fetched->topic_count++;
    }
    fetched->rows[fetched->row_count++] = (struct answered_partition){.partition = partition,
                                                                      .records = any_records(),
                                                                      .high_watermark = (int64_t)next(),
                                                                      .last_stable = (int64_t)next(),
                                                                      .log_start = (int64_t)next()};
}

/* Rows of topics that the request doesn't have. */
static void add_rows(struct small_fetched *fetched)
{
    static uint8_t name[INT16_MAX];
    bool has_ids = fetched->version >= FETCH_TOPIC_IDS_SINCE;
    size_t rows = next() % (next() % 16 ? 3 : FETCH_ROWS_MAX + 1);
    struct text topic = {.bytes = name, .size = FETCH_TOPIC_ID_BYTES};
    for (; rows > 0 && fetched->row_count < FETCH_ROWS_MAX; rows--) {
        topic.bytes = name + next() % 2;
        topic.size = has_ids ? FETCH_TOPIC_ID_BYTES : (int32_t)(next() % (next() % 256 ? 300 : INT16_MAX - 1));
        add_row(fetched, &topic, (int32_t)next());
    }
}

static void check_answer_of(const struct small_fetched *fetched)
{
    uint64_t records = 0;
    size_t number = 0, count = 0, start = 0, fits = fetched_room(fetched);
    for (int32_t row = 0; row < fetched->row_count; row++) {
        records += (uint64_t)fetched->rows[row].records;
        count += fetched->rows[row].records > 0;
    }
    size_t *cuts = (size_t *)(void *)room((int64_t)(count * sizeof(size_t)));
    uint8_t *answer = room((int64_t)fits), length[8];
    size_t size = write_fetched(fetched, answer, cuts);
    CHECK(size <= fits && (size == 0 ? fits - 4 + records > INT32_MAX : size - 4 + records <= INT32_MAX));
    CHECK(size == 0 || number_at(answer, 4) == size - 4 + records);
    for (int32_t row = 0; size > 0 && row < fetched->row_count; row++) {
        if (fetched->rows[row].records > 0) {
            size_t cut = cuts[number++];
            size_t prefix = (size_t)(write_length(length, (size_t)fetched->rows[row].records, fetched->version >= 12, 4) - length);
            CHECK(cut <= size && cut >= start + prefix && memcmp(answer + cut - prefix, length, prefix) == 0);
            start = cut;
        }
    }
    free(cuts);
    free(answer);
}

static void answer_fetch(const struct small_fetch *fetch)
{
    static struct small_fetched fetched;
    fetched.version = fetch->version;
    fetched.correlation_id = fetch->correlation_id;
    fetched.session = fetch->session;
    fetched.is_committed_only = fetch->is_committed_only;
    fetched.topic_count = fetched.row_count = 0;
    for (int32_t number = 0; number < fetch->count; number++) {
        add_row(&fetched, &fetch->rows[number].topic, fetch->rows[number].partition);
    }
    add_rows(&fetched);
    check_answer_of(&fetched);
}

static unsigned long runs;

static void try_request(const uint8_t *frame, size_t size, bool is_usual)
{
    runs++;
    static struct small_fetch fetch;
    uint8_t *input = copy(frame, size);
    bool is_read = read_small_fetch(input, size, &fetch);
    CHECK(is_read || !is_usual);
    if (is_read) {
        check_fetch(&fetch, input, size);
        answer_fetch(&fetch);
    }
    free(input);
}

int main(int count, char **arguments)
{
    struct session session = begin(count, arguments);
    static uint8_t frame[FRAME_BYTES];
    for (unsigned long round = 0; (round & 1023) != 0 || time(NULL) < session.end; round++) {
        size_t rows = next() % (next() % 16 ? 5 : WRITTEN_ROWS_MAX + 1);
        size_t size = write_fetch(frame, rows);
        try_request(frame, size, rows <= FETCH_ROWS_MAX);
        /* Some times more with other bytes: most of the work is to write it. */
        for (unsigned again = next() % 16; again > 0; again--) {
            try_request(frame, mutate(frame, size), false);
        }
    }
    return finish(&session, runs);
}
