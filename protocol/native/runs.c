/* Runs of small Produce requests: see runs.h. */

#include "runs.h"

#include <string.h>

#define LENGTH_BYTES 4

/* Whether a request is answered as another one is, and its batch lies in the same log. */
static bool is_alike(const struct small_produce *one, const struct small_produce *other)
{
    return one->version == other->version && one->acks == other->acks && one->timeout_ms == other->timeout_ms &&
           one->partition == other->partition && one->topic_size == other->topic_size &&
           memcmp(one->topic, other->topic, one->topic_size) == 0;
}

/* Whether a log that takes one batch takes the other behind it, as far as its producer goes. */
static bool follows(const struct small_batch *batch, const struct small_batch *before)
{
    if (batch->producer_id < 0) {
        return before->producer_id < 0;
    }
    return batch->producer_id == before->producer_id && batch->producer_epoch == before->producer_epoch && batch->producer_epoch >= 0 &&
           batch->base_sequence > before->base_sequence && batch->base_sequence - before->base_sequence == before->record_count;
}

static size_t read_length(const uint8_t *place)
{
    return (size_t)place[0] << 24 | (size_t)place[1] << 16 | (size_t)place[2] << 8 | place[3];
}

/* Reads the fields of requests, not their batches: it costs little to find out here that there is no run. */
static size_t read_fields_of_run(const uint8_t *bytes, size_t size, size_t frame_max, struct produce_run *run, size_t *ends)
{
    size_t at = 0, count = 0;
    while (count < RUN_MAX && size - at > LENGTH_BYTES) {
        const uint8_t *place = bytes + at;
        size_t length = read_length(place);
        struct small_produce *request = &run->requests[count];
        if (length > frame_max || length > size - at - LENGTH_BYTES || !read_produce_fields(place + LENGTH_BYTES, length, request) ||
            request->transactional_id.size >= 0 || !may_be_small_batch(&request->batch) ||
            (count > 0 && !is_alike(request, &run->requests[0]))) {
            break;
        }
        at += LENGTH_BYTES + length;
        ends[count++] = at;
    }
    return count;
}

bool read_produce_run(const uint8_t *bytes, size_t size, size_t frame_max, struct produce_run *run)
{
    size_t ends[RUN_MAX];
    size_t found = read_fields_of_run(bytes, size, frame_max, run, ends);
    run->count = 0;
    if (found < 2) {
        return false;
    }
    for (; run->count < found; run->count++) {
        struct small_batch *batch = &run->requests[run->count].batch;
        if (!read_small_batch(batch) || (run->count > 0 && !follows(batch, &run->requests[run->count - 1].batch))) {
            break;
        }
    }
    if (run->count < 2) {
        return false;
    }
    run->size = ends[run->count - 1];
    return true;
}

/* Whether the group has a request of the same idempotent producer: a log that takes either might not take both. */
static bool has_producer(const struct produce_round *round, const struct produce_group *group, int64_t producer_id)
{
    for (size_t number = 0; producer_id >= 0 && number < group->count; number++) {
        if (round->requests[group->members[number]].batch.producer_id == producer_id) {
            return true;
        }
    }
    return false;
}

/* Puts the request that was read last into the group of those that are alike, or into a new one. */
static void put_into_group(struct produce_round *round, size_t place)
{
    const struct small_produce *request = &round->requests[place];
    size_t number = 0;
    while (number < round->group_count && !is_alike(request, &round->requests[round->groups[number].members[0]])) {
        number++;
    }
    struct produce_group *group = &round->groups[number];
    if (number == round->group_count) {
        round->group_count++;
        group->count = 0;
    } else if (has_producer(round, group, request->batch.producer_id)) {
        return;
    }
    group->members[group->count++] = (uint8_t)place;
}

bool read_produce_round(const uint8_t *bytes, size_t size, struct produce_round *round)
{
    size_t at = 0;
    round->count = round->group_count = 0;
    for (; round->count < ROUND_MAX && size - at > LENGTH_BYTES; round->count++) {
        size_t length = read_length(bytes + at);
        if (length > size - at - LENGTH_BYTES) {
            break;
        }
        struct small_produce *request = &round->requests[round->count];
        if (read_small_produce(bytes + at + LENGTH_BYTES, length, request) && request->transactional_id.size < 0) {
            put_into_group(round, round->count);
        }
        at += LENGTH_BYTES + length;
    }
    for (size_t number = 0; number < round->group_count; number++) {
        if (round->groups[number].count > 1) {
            return true;
        }
    }
    return false;
}
