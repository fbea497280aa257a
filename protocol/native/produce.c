/* Small Produce requests and their responses, see produce.h. Source: protocol guide, versions 3 to 13; KIP-482,
 * KIP-516. */

#include "produce.h"

#include "fields.h"
#include "head.h"
#include "records.h"

#include <string.h>

#define PRODUCE 0
#define FIRST_VERSION 3
#define LAST_VERSION 13
#define FLEXIBLE_SINCE 9
#define LOG_START_SINCE 5
#define RECORD_ERRORS_SINCE 8

/* ---------------------------------------------------------------- the batch */
#define BATCH_OVERHEAD 61
#define LOG_OVERHEAD 12
#define CURRENT_MAGIC 2
#define NO_TIMESTAMP (-1)

static bool may_be_small_batch(const struct small_batch *batch)
{
    const uint8_t *start = batch->start;
    size_t size = batch->size;
    /* Uncompressed, with create time, and transactional if the request is. */
    return size > BATCH_OVERHEAD && size <= SMALL_BATCH_BYTES && int64_at(start) == 0 &&
           int32_at(start + 8) == (int32_t)(size - LOG_OVERHEAD) && start[16] == CURRENT_MAGIC &&
           int16_at(start + 21) == batch->attributes;
}

static bool read_small_batch(struct small_batch *batch)
{
    if (!may_be_small_batch(batch)) {
        return false;
    }
    const uint8_t *start = batch->start;
    size_t size = batch->size;
    *batch = (struct small_batch){.start = start,
                                  .size = size,
                                  .crc = (uint32_t)number_at(start + 17, 4),
                                  .attributes = batch->attributes,
                                  .last_offset_delta = int32_at(start + 23),
                                  .base_timestamp = int64_at(start + 27),
                                  .max_timestamp = int64_at(start + 35),
                                  .producer_id = int64_at(start + 43),
                                  .producer_epoch = int16_at(start + 51),
                                  .base_sequence = int32_at(start + 53),
                                  .record_count = int32_at(start + 57)};
    if (batch->record_count <= 0 || batch->last_offset_delta != batch->record_count - 1 ||
        batch->max_timestamp < NO_TIMESTAMP ||
        (batch->producer_id >= 0 ? batch->base_sequence < 0 : batch->attributes == TRANSACTIONAL)) {
        return false;
    }
    struct walked walked;
    int64_t max_timestamp;
    if (!walk_records(start + BATCH_OVERHEAD, size - BATCH_OVERHEAD, batch->record_count, &walked) ||
        !walked.in_order ||
        __builtin_add_overflow(batch->base_timestamp, walked.min_timestamp_delta, &batch->min_timestamp) ||
        __builtin_add_overflow(batch->base_timestamp, walked.max_timestamp_delta, &max_timestamp)) {
        return false;
    }
    batch->offset_delta_of_max_timestamp = walked.max_timestamp_index;
    return max_timestamp == batch->max_timestamp;
}

/* ---------------------------------------------------------------- the request */
static bool read_head_of_produce(const uint8_t *frame, size_t size, struct small_produce *produce, size_t *head_size)
{
    struct request_head head;
    if (size < FIXED_HEAD_BYTES || !read_request_head(frame, size, int16_at(frame + 2) >= FLEXIBLE_SINCE, &head)) {
        return false;
    }
    produce->version = head.version;
    produce->correlation_id = head.correlation_id;
    *head_size = head.size;
    return head.api_key == PRODUCE && head.version >= FIRST_VERSION && head.version <= LAST_VERSION;
}

static bool read_topic(struct rest *rest, bool is_flexible, struct small_produce *produce)
{
    if (produce->version < TOPIC_IDS_SINCE) {
        return take_length(rest, is_flexible, 2, &produce->topic_size) && produce->topic_size > 0 &&
               produce->topic_size <= INT16_MAX && take_text(rest, produce->topic_size, &produce->topic);
    }
    static const uint8_t no_topic_id[TOPIC_ID_BYTES];
    produce->topic_size = TOPIC_ID_BYTES;
    produce->topic = take(rest, TOPIC_ID_BYTES);
    return rest->is_sound && memcmp(produce->topic, no_topic_id, TOPIC_ID_BYTES) != 0;
}

static bool read_produce_fields(const uint8_t *frame, size_t size, struct small_produce *produce)
{
    size_t head_size, topics, partitions;
    if (!read_head_of_produce(frame, size, produce, &head_size)) {
        return false;
    }
    struct rest rest = {.at = frame + head_size, .end = frame + size, .is_sound = true};
    bool is_flexible = produce->version >= FLEXIBLE_SINCE;
    if (!take_nullable(&rest, is_flexible, &produce->transactional_id) || produce->transactional_id.size == 0) {
        return false;
    }
    produce->batch.attributes = produce->transactional_id.size < 0 ? 0 : TRANSACTIONAL;
    const uint8_t *acks_and_timeout = take(&rest, 6);
    if (!rest.is_sound) {
        return false;
    }
    produce->acks = int16_at(acks_and_timeout);
    produce->timeout_ms = int32_at(acks_and_timeout + 2);
    if ((produce->acks != 1 && produce->acks != -1) || !take_length(&rest, is_flexible, 4, &topics) || topics != 1 ||
        !read_topic(&rest, is_flexible, produce) || !take_length(&rest, is_flexible, 4, &partitions) ||
        partitions != 1) {
        return false;
    }
    produce->partition = int32_at(take(&rest, 4));
    if (!take_length(&rest, is_flexible, 4, &produce->batch.size)) {
        return false;
    }
    produce->batch.start = take(&rest, produce->batch.size);
    /* Neither the partition nor the topic nor the request has tagged fields, and the request ends here. */
    return take_end(&rest, is_flexible, 3);
}

bool read_small_produce(const uint8_t *frame, size_t size, struct small_produce *produce)
{
    return read_produce_fields(frame, size, produce) && read_small_batch(&produce->batch);
}

/* ---------------------------------------------------------------- several requests */
#define LENGTH_BYTES 4

static bool is_alike(const struct small_produce *one, const struct small_produce *other)
{
    return one->version == other->version && one->acks == other->acks && one->timeout_ms == other->timeout_ms &&
           one->partition == other->partition && one->topic_size == other->topic_size &&
           memcmp(one->topic, other->topic, one->topic_size) == 0;
}

/* Returns whether a batch continues the sequence of its producer after another one. */
static bool follows(const struct small_batch *batch, const struct small_batch *before)
{
    return batch->producer_epoch == before->producer_epoch && batch->producer_epoch >= 0 &&
           batch->base_sequence > before->base_sequence &&
           batch->base_sequence - before->base_sequence == before->record_count;
}

/* Appends the request at `place` to a group; returns false if it does not belong there. */
static bool join_group(struct produce_set *set, struct produce_group *group, size_t place)
{
    const struct small_produce *request = &set->requests[place];
    bool begins = true;
    if (request->transactional_id.size >= 0 && group->count > 0) {
        return false;
    }
    for (size_t number = group->count; number > 0 && request->batch.producer_id >= 0 && begins; number--) {
        const struct small_batch *before = &set->requests[group->members[number - 1]].batch;
        if (before->producer_id == request->batch.producer_id) {
            if (!follows(&request->batch, before)) {
                return false;
            }
            begins = false;
        }
    }
    group->begins[group->count] = begins;
    group->members[group->count++] = (uint8_t)place;
    return true;
}

/* Returns the group of the requests that are alike, which may be new. */
static struct produce_group *group_of(struct produce_set *set, const struct small_produce *request)
{
    for (size_t number = 0; number < set->group_count; number++) {
        const struct small_produce *first = &set->requests[set->groups[number].members[0]];
        if (first->transactional_id.size < 0 && request->transactional_id.size < 0 && is_alike(request, first)) {
            return &set->groups[number];
        }
    }
    struct produce_group *group = &set->groups[set->group_count++];
    group->count = 0;
    return group;
}

void read_produce_set(const uint8_t *bytes, size_t size, size_t frame_max, bool is_one, struct produce_set *set)
{
    size_t at = 0, most = is_one ? REQUESTS_OF_CONNECTION_MAX : REQUESTS_MAX;
    set->count = set->group_count = 0;
    while (set->count < most && size - at > LENGTH_BYTES) {
        size_t length = (size_t)number_at(bytes + at, LENGTH_BYTES), place = set->count;
        struct small_produce *request = &set->requests[place];
        if (length > frame_max || length > size - at - LENGTH_BYTES) {
            break;
        }
        bool is_small =
            read_produce_fields(bytes + at + LENGTH_BYTES, length, request) && may_be_small_batch(&request->batch);
        at += LENGTH_BYTES + length;
        set->ends[set->count++] = at;
        /* Stop before the batch is read: on one connection, the first request of another kind ends the group. */
        if (is_one && set->group_count == 1 && is_small && !is_alike(request, &set->requests[0])) {
            break;
        }
        bool is_taken = is_small && read_small_batch(&request->batch) && join_group(set, group_of(set, request), place);
        if (is_one && (!is_taken || set->group_count > 1)) {
            break;
        }
    }
    if (is_one && set->group_count > 1) {
        set->group_count = 1;
    }
}

/* ---------------------------------------------------------------- the answer */
size_t produced_size(const struct produced *produced)
{
    int16_t version = produced->version;
    if (version < FIRST_VERSION || version > LAST_VERSION || produced->topic_size > INT16_MAX ||
        (version >= TOPIC_IDS_SINCE && produced->topic_size != TOPIC_ID_BYTES)) {
        return 0;
    }
    /* Length and correlation id; partition, error, base offset, append time; throttle time. */
    size_t size = 8 + 4 + 2 + 8 + 8 + 4 + produced->topic_size;
    if (version < FLEXIBLE_SINCE) {
        return size + 4 + 2 + 4 + (version >= LOG_START_SINCE ? 8 : 0) + (version >= RECORD_ERRORS_SINCE ? 4 + 2 : 0);
    }
    /* Four empty sections of tags, one topic, one partition, the log start, no record errors, no message. */
    return size + 4 + 1 + 1 + 8 + 1 + 1 + (version < TOPIC_IDS_SINCE ? compact_size(produced->topic_size + 1) : 0);
}

void write_produced(const struct produced *produced, uint8_t *out)
{
    int16_t version = produced->version;
    bool is_flexible = version >= FLEXIBLE_SINCE;
    uint8_t *at = put(out, produced_size(produced) - 4, 4);
    at = put(at, (uint32_t)produced->correlation_id, 4);
    if (is_flexible) {
        *at++ = 0;
    }
    at = put_length(at, 1, is_flexible, 4);
    if (version < TOPIC_IDS_SINCE) {
        at = put_length(at, produced->topic_size, is_flexible, 2);
    }
    memcpy(at, produced->topic, produced->topic_size);
    at = put_length(at + produced->topic_size, 1, is_flexible, 4);
    at = put(at, (uint32_t)produced->partition, 4);
    at = put(at, 0, 2);
    at = put(at, (uint64_t)produced->base_offset, 8);
    at = put(at, (uint64_t)produced->log_append_time_ms, 8);
    if (version >= LOG_START_SINCE) {
        at = put(at, (uint64_t)produced->log_start_offset, 8);
    }
    if (is_flexible) {
        /* No record errors, no message, no tags of partition and topic. */
        at = put(at, 0x01000000, 4);
    } else if (version >= RECORD_ERRORS_SINCE) {
        at = put(put(at, 0, 4), 0xffff, 2);
    }
    at = put(at, 0, 4);
    if (is_flexible) {
        *at = 0;
    }
}
