/* A Fetch of few partitions, and its answer where none of them has an error. No Python here; the bytes may come from anybody. */

#ifndef LOWTIDE_FETCH_H
#define LOWTIDE_FETCH_H

#include "fields.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A request with more partitions isn't small. */
#define FETCH_ROWS_MAX 64

#define FETCH_FIRST_VERSION 4
#define FETCH_LAST_VERSION 18
#define FETCH_TOPIC_IDS_SINCE 13
#define FETCH_TOPIC_ID_BYTES 16

struct fetched_partition {
    struct text topic; /* its name, or its id where the version has ids */
    int32_t partition, leader_epoch, last_epoch, bytes_max;
    int64_t offset, log_start;
};

struct small_fetch {
    int16_t version;
    int32_t correlation_id, replica, wait_ms, bytes_min, bytes_max, session, session_epoch;
    int64_t broker_epoch;
    bool is_committed_only;
    struct text client, rack;
    int32_t count;
    struct fetched_partition rows[FETCH_ROWS_MAX];
};

/* Reads the Fetch request in `frame`: one that takes nothing out of its session, and has no tagged fields but who asks. False for any
   other. */
bool read_small_fetch(const uint8_t *frame, size_t size, struct small_fetch *fetch);

struct answered_partition {
    int32_t partition, records; /* how many bytes of records it is answered with */
    int64_t high_watermark, last_stable, log_start;
};

struct answered_topic {
    struct text topic;
    int32_t first, count; /* of its rows */
};

struct small_fetched {
    int16_t version;
    int32_t correlation_id, session, topic_count, row_count;
    bool is_committed_only;
    struct answered_topic topics[FETCH_ROWS_MAX];
    struct answered_partition rows[FETCH_ROWS_MAX];
};

/* How many bytes the answer takes at most, without the records. */
size_t fetched_room(const struct small_fetched *fetched);

/* Writes the answer without its records. Returns its size; `cuts` has where, in these bytes, the records of each row that has any belong.
   0 for an answer that is too large for a frame; `out` holds no frame then. */
size_t write_fetched(const struct small_fetched *fetched, uint8_t *out, size_t cuts[FETCH_ROWS_MAX]);

#endif
