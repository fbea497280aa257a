/* Runs of small Produce requests: see runs.h. */

#include "runs.h"

#include <string.h>

#define LENGTH_BYTES 4

/* Whether a request is answered as another one is, and its batch lies in the same log. */
static bool is_alike(const struct small_produce *one, const struct small_produce *other)
{
    return one->version == other->version && one->acks == other->acks && one->partition == other->partition &&
           one->topic_size == other->topic_size && memcmp(one->topic, other->topic, one->topic_size) == 0;
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

/* Reads the fields of requests, not their batches: it costs little to find out here that there is no run. */
static size_t read_fields_of_run(const uint8_t *bytes, size_t size, size_t frame_max, struct produce_run *run, size_t *ends)
{
    size_t at = 0, count = 0;
    while (count < RUN_MAX && size - at > LENGTH_BYTES) {
        const uint8_t *place = bytes + at;
        size_t length = (size_t)place[0] << 24 | (size_t)place[1] << 16 | (size_t)place[2] << 8 | place[3];
        struct small_produce *request = &run->requests[count];
        if (length > frame_max || length > size - at - LENGTH_BYTES || !read_produce_fields(place + LENGTH_BYTES, length, request) ||
            !may_be_small_batch(request->batch.start, request->batch.size) || (count > 0 && !is_alike(request, &run->requests[0]))) {
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
        if (!read_small_batch(batch->start, batch->size, batch) ||
            (run->count > 0 && !follows(batch, &run->requests[run->count - 1].batch))) {
            break;
        }
    }
    if (run->count < 2) {
        return false;
    }
    run->size = ends[run->count - 1];
    return true;
}
