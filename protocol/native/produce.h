/* Small Produce requests, which are most of them, and their groups that are appended together. A small request has one
   small, uncompressed batch for one partition.

   Like records.h, these functions read untrusted bytes: they stay within the given range, compare sizes with the rest,
   and return false for anything else, about which the plain form decides. They do not verify checksums. */

#ifndef LOWTIDE_PRODUCE_H
#define LOWTIDE_PRODUCE_H

#include "fields.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The maximum size of a batch. It has fewer records than an event loop may visit at once (`QUICK_RECORDS`). */
#define SMALL_BATCH_BYTES (64 << 10)

/* The attributes of a transactional batch. */
#define TRANSACTIONAL 0x10

#define TOPIC_ID_BYTES 16
#define TOPIC_IDS_SINCE 13

/* The header of a batch, and the timestamps of its records. */
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
    struct text transactional_id; /* ASCII, not empty; the batch is transactional if there is one */
    int16_t acks;                 /* 1 or -1 */
    int32_t timeout_ms;
    const uint8_t *topic; /* the name in ASCII; the id from version 13 on */
    size_t topic_size;
    int32_t partition;
    struct small_batch batch;
};

/* Reads the request in `frame`, including its header. */
bool read_small_produce(const uint8_t *frame, size_t size, struct small_produce *produce);

/* The maximum number of requests that are read at once, from several connections or from one: several times what
   clients keep in flight (Java: 5). They block the loop for a fraction of a millisecond. */
#define REQUESTS_MAX 64
#define REQUESTS_OF_CONNECTION_MAX 16

/* Requests that are appended together, by their places in the set, and whether each is the first of its producer. */
struct produce_group {
    size_t count;
    uint8_t members[REQUESTS_MAX];
    bool begins[REQUESTS_MAX];
};

struct produce_set {
    size_t count, group_count;
    size_t ends[REQUESTS_MAX]; /* the ends of the frames */
    struct small_produce requests[REQUESTS_MAX];
    struct produce_group groups[REQUESTS_MAX];
};

/* Reads requests in frames of at most `frame_max` bytes. Those with the same version, acks, timeout, topic and
   partition form a group. A batch of an idempotent producer joins it as the producer's first one, or if it continues
   the sequence. A transactional batch forms its own group.

   `is_one`: all requests came on one connection, and are read until one is not in the group of the first. Otherwise
   each came on another connection, and invalid requests and those without a group are left out. */
void read_produce_set(const uint8_t *bytes, size_t size, size_t frame_max, bool is_one, struct produce_set *set);

/* The response to an appended batch. */
struct produced {
    int16_t version;
    int32_t correlation_id;
    const uint8_t *topic;
    size_t topic_size;
    int32_t partition;
    int64_t base_offset, log_append_time_ms, log_start_offset;
};

/* Returns the size of the response with its length; 0 for an invalid topic or version. */
size_t produced_size(const struct produced *produced);
/* Writes that number of bytes. */
void write_produced(const struct produced *produced, uint8_t *out);

#endif
