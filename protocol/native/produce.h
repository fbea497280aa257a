/* Produce requests as most are, one batch of few bytes for one partition, not compressed; and those of them that are appended together.
   No Python here.

   As in records.h the bytes may come from anybody: each function reads within what it is given, compares sizes with what is left, and
   answers false for whatever isn't exactly that; the plain form decides about it. The checksum is not looked at. */

#ifndef LOWTIDE_PRODUCE_H
#define LOWTIDE_PRODUCE_H

#include "fields.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of a batch, inclusive. So it has fewer records than an event loop may walk over at once (`QUICK_RECORDS`). */
#define SMALL_BATCH_BYTES (64 << 10)

/* The attributes of a batch that belongs to a transaction. */
#define TRANSACTIONAL 0x10

#define TOPIC_ID_BYTES 16
#define TOPIC_IDS_SINCE 13

/* What a batch says of itself, and its records together. */
struct small_batch {
    const uint8_t *start;
    size_t size;
    uint32_t crc;
    int16_t attributes; /* 0, or TRANSACTIONAL */
    int32_t last_offset_delta, record_count, offset_delta_of_max_timestamp;
    int64_t base_timestamp, max_timestamp, min_timestamp;
    int64_t producer_id;
    int16_t producer_epoch;
    int32_t base_sequence;
};

struct small_produce {
    int16_t version;
    int32_t correlation_id;
    struct text transactional_id; /* in ASCII, not empty; without one the batch is of no transaction, and with one it is of a producer's */
    int16_t acks;                 /* 1 or -1 */
    int32_t timeout_ms;
    const uint8_t *topic; /* its name in ASCII, or from version 13 on its id */
    size_t topic_size;
    int32_t partition;
    struct small_batch batch;
};

/* Reads the request in `frame`, from its header on. */
bool read_small_produce(const uint8_t *frame, size_t size, struct small_produce *produce);

/* Requests that are read at once: of so many connections, or of one connection, several times what clients keep in flight (Java: 5).
   Together they hold the loop for a fraction of a millisecond. */
#define REQUESTS_MAX 64
#define REQUESTS_OF_CONNECTION_MAX 16

/* Requests that are appended together, by their places among all that were read; and whether each is the first of its producer here. */
struct produce_group {
    size_t count;
    uint8_t members[REQUESTS_MAX];
    bool begins[REQUESTS_MAX];
};

struct produce_set {
    size_t count, group_count;
    size_t ends[REQUESTS_MAX]; /* of the frames */
    struct small_produce requests[REQUESTS_MAX];
    struct produce_group groups[REQUESTS_MAX];
};

/* Reads the requests whose frames begin at `bytes`, each behind its length, of at most `frame_max` bytes. Those with the same version,
   acks, timeout, topic and partition are a group. A batch of an idempotent producer is in it if it is the first one of that producer
   there, or follows the one before it without a gap in the sequences; one of a transaction is a group by itself.

   With `is_one`, all requests came on one connection: they are read up to the first that isn't in the first one's group. Without it each
   came on another connection: what can't be read, or isn't in a group, is left out. */
void read_produce_set(const uint8_t *bytes, size_t size, size_t frame_max, bool is_one, struct produce_set *set);

/* What is answered where it was written. */
struct produced {
    int16_t version;
    int32_t correlation_id;
    const uint8_t *topic;
    size_t topic_size;
    int32_t partition;
    int64_t base_offset, log_append_time_ms, log_start_offset;
};

/* Of its answer, with the frame's length; 0 for a topic or version that no request could have. */
size_t produced_size(const struct produced *produced);
/* Writes so many bytes. */
void write_produced(const struct produced *produced, uint8_t *out);

#endif
