/* Fetch of few partitions, with its answer: see fetch.h. Source: protocol guide, Fetch 4 to 18; KIP-227, KIP-392, KIP-482, KIP-516,
   KIP-903. */

#include "fetch.h"

#include "fields.h"
#include "head.h"

#include <string.h>

#define FETCH 1
#define LOG_STARTS_SINCE 5
#define SESSIONS_SINCE 7
#define LEADER_EPOCHS_SINCE 9
#define RACKS_SINCE 11
#define FLEXIBLE_SINCE 12
#define REPLICA_STATE_SINCE 15
#define REPLICA_STATE_TAG 1
#define REPLICA_STATE_BYTES 13 /* broker id, epoch, and no tags */
#define NONE (-1)
#define CONSUMER (-1)
#define FINAL_EPOCH (-1)

/* ---------------------------------------------------------------- reading */
static bool take_topic(struct rest *rest, int16_t version, struct text *topic)
{
    if (version < FETCH_TOPIC_IDS_SINCE) {
        return take_string(rest, version >= FLEXIBLE_SINCE, topic) && topic->size > 0;
    }
    static const uint8_t no_topic_id[FETCH_TOPIC_ID_BYTES];
    *topic = (struct text){.bytes = take(rest, FETCH_TOPIC_ID_BYTES), .size = FETCH_TOPIC_ID_BYTES};
    return rest->is_sound && memcmp(topic->bytes, no_topic_id, FETCH_TOPIC_ID_BYTES) != 0;
}

static bool take_partition(struct rest *rest, int16_t version, struct fetched_partition *row)
{
    row->partition = int32_at(take(rest, 4));
    row->leader_epoch = version >= LEADER_EPOCHS_SINCE ? int32_at(take(rest, 4)) : NONE;
    row->offset = int64_at(take(rest, 8));
    row->last_epoch = version >= FLEXIBLE_SINCE ? int32_at(take(rest, 4)) : NONE;
    row->log_start = version >= LOG_STARTS_SINCE ? int64_at(take(rest, 8)) : NONE;
    row->bytes_max = int32_at(take(rest, 4));
    return row->partition >= 0 && row->bytes_max >= 0 && (version < FLEXIBLE_SINCE || take_byte(rest, 0));
}

static bool take_partitions(struct rest *rest, struct small_fetch *fetch)
{
    int16_t version = fetch->version;
    bool is_flexible = version >= FLEXIBLE_SINCE;
    size_t topics, rows;
    fetch->count = 0;
    if (!take_length(rest, is_flexible, 4, &topics) || topics > FETCH_ROWS_MAX) {
        return false;
    }
    for (; topics > 0; topics--) {
        struct text topic;
        if (!take_topic(rest, version, &topic) || !take_length(rest, is_flexible, 4, &rows) || rows > FETCH_ROWS_MAX) {
            return false;
        }
        for (; rows > 0; rows--) {
            if (fetch->count == FETCH_ROWS_MAX || !take_partition(rest, version, &fetch->rows[fetch->count])) {
                return false;
            }
            fetch->rows[fetch->count++].topic = topic;
        }
        if (is_flexible && !take_byte(rest, 0)) {
            return false;
        }
    }
    return true;
}

/* The tagged fields of the request: none, or who asks. */
static bool take_tags(struct rest *rest, struct small_fetch *fetch)
{
    if (fetch->version < FLEXIBLE_SINCE) {
        return true;
    }
    uint8_t tags = *take(rest, 1);
    if (!rest->is_sound || tags > (fetch->version >= REPLICA_STATE_SINCE ? 1 : 0)) {
        return false;
    }
    if (tags == 0) {
        return true;
    }
    if (!take_byte(rest, REPLICA_STATE_TAG) || !take_byte(rest, REPLICA_STATE_BYTES)) {
        return false;
    }
    fetch->replica = int32_at(take(rest, 4));
    fetch->broker_epoch = int64_at(take(rest, 8));
    return take_byte(rest, 0);
}

bool read_small_fetch(const uint8_t *frame, size_t size, struct small_fetch *fetch)
{
    struct request_head head;
    if (size < FIXED_HEAD_BYTES || !read_request_head(frame, size, int16_at(frame + 2) >= FLEXIBLE_SINCE, &head) || head.api_key != FETCH ||
        head.version < FETCH_FIRST_VERSION || head.version > FETCH_LAST_VERSION) {
        return false;
    }
    int16_t version = fetch->version = head.version;
    bool is_flexible = version >= FLEXIBLE_SINCE;
    struct rest rest = {.at = frame + head.size, .end = frame + size, .is_sound = true};
    fetch->correlation_id = head.correlation_id;
    fetch->client = (struct text){.bytes = head.client_id, .size = head.client_id_size};
    fetch->replica = version < REPLICA_STATE_SINCE ? int32_at(take(&rest, 4)) : CONSUMER;
    fetch->broker_epoch = NONE;
    fetch->wait_ms = int32_at(take(&rest, 4));
    fetch->bytes_min = int32_at(take(&rest, 4));
    fetch->bytes_max = int32_at(take(&rest, 4));
    uint8_t isolation = *take(&rest, 1);
    fetch->is_committed_only = isolation == 1;
    fetch->session = version >= SESSIONS_SINCE ? int32_at(take(&rest, 4)) : 0;
    fetch->session_epoch = version >= SESSIONS_SINCE ? int32_at(take(&rest, 4)) : FINAL_EPOCH;
    fetch->rack = (struct text){.bytes = NULL, .size = 0};
    size_t forgotten = 0;
    return isolation <= 1 && fetch->bytes_max >= 0 && take_partitions(&rest, fetch) &&
           (version < SESSIONS_SINCE || (take_length(&rest, is_flexible, 4, &forgotten) && forgotten == 0)) &&
           (version < RACKS_SINCE || take_string(&rest, is_flexible, &fetch->rack)) && take_tags(&rest, fetch) &&
           take_end(&rest, is_flexible, 0);
}

/* ---------------------------------------------------------------- the answer */
/* Length, correlation id, tags of the header, time to wait, error, session, topics, tags. */
#define HEAD_ROOM 32
/* Lengths and tags of a topic. */
#define TOPIC_ROOM 16
/* Partition, error, three offsets, no aborted transactions, no other replica, the length of the records, tags. */
#define ROW_ROOM 48

size_t fetched_room(const struct small_fetched *fetched)
{
    size_t room = HEAD_ROOM + (size_t)fetched->row_count * ROW_ROOM;
    for (int32_t number = 0; number < fetched->topic_count; number++) {
        room += TOPIC_ROOM + (size_t)fetched->topics[number].topic.size;
    }
    return room;
}

static uint8_t *put_row(uint8_t *at, const struct small_fetched *fetched, const struct answered_partition *row)
{
    int16_t version = fetched->version;
    bool is_flexible = version >= FLEXIBLE_SINCE;
    at = put(put(at, (uint32_t)row->partition, 4), 0, 2);
    at = put(put(at, (uint64_t)row->high_watermark, 8), (uint64_t)row->last_stable, 8);
    at = version >= LOG_STARTS_SINCE ? put(at, (uint64_t)row->log_start, 8) : at;
    /* No list of aborted transactions, or an empty one. */
    uint32_t aborted = fetched->is_committed_only ? 0 : UINT32_MAX;
    at = is_flexible ? put(at, aborted + 1, 1) : put(at, aborted, 4);
    at = version >= RACKS_SINCE ? put(at, UINT32_MAX, 4) : at;
    return put_length(at, (size_t)row->records, is_flexible, 4);
}

size_t write_fetched(const struct small_fetched *fetched, uint8_t *out, size_t cuts[FETCH_ROWS_MAX])
{
    int16_t version = fetched->version;
    bool is_flexible = version >= FLEXIBLE_SINCE;
    size_t records = 0, cut = 0;
    uint8_t *at = put(out + 4, (uint32_t)fetched->correlation_id, 4);
    at = put(at, 0, is_flexible ? 5 : 4);
    at = version >= SESSIONS_SINCE ? put(put(at, 0, 2), (uint32_t)fetched->session, 4) : at;
    at = put_length(at, (size_t)fetched->topic_count, is_flexible, 4);
    for (int32_t number = 0; number < fetched->topic_count; number++) {
        const struct answered_topic *topic = &fetched->topics[number];
        size_t name = (size_t)topic->topic.size;
        at = version < FETCH_TOPIC_IDS_SINCE ? put_length(at, name, is_flexible, 2) : at;
        memcpy(at, topic->topic.bytes, name);
        at = put_length(at + name, (size_t)topic->count, is_flexible, 4);
        for (int32_t row = topic->first; row < topic->first + topic->count; row++) {
            at = put_row(at, fetched, &fetched->rows[row]);
            if (fetched->rows[row].records > 0) {
                records += (size_t)fetched->rows[row].records;
                cuts[cut++] = (size_t)(at - out);
            }
            at = put(at, 0, is_flexible ? 1 : 0);
        }
        at = put(at, 0, is_flexible ? 1 : 0);
    }
    at = put(at, 0, is_flexible ? 1 : 0);
    size_t size = (size_t)(at - out);
    if (size - 4 + records > INT32_MAX) {
        return 0;
    }
    (void)put(out, size - 4 + records, 4);
    return size;
}
