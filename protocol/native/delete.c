/* DeleteRecords for one partition, and its answer: see delete.h. Source: protocol guide, DeleteRecords 0 to 2; version 3 is KIP-1343's. */

#include "delete.h"

#include "fields.h"
#include "head.h"

#include <string.h>

#define DELETE_RECORDS 21
#define LAST_VERSION 3
#define FLEXIBLE_SINCE 2
#define LEADER_ONLY_SINCE 3

bool read_small_delete(const uint8_t *frame, size_t size, struct small_delete *delete)
{
    struct request_head head;
    size_t topics, partitions;
    if (size < FIXED_HEAD_BYTES || !read_request_head(frame, size, int16_at(frame + 2) >= FLEXIBLE_SINCE, &head) ||
        head.api_key != DELETE_RECORDS || head.version < 0 || head.version > LAST_VERSION) {
        return false;
    }
    bool is_flexible = head.version >= FLEXIBLE_SINCE;
    struct rest rest = {.at = frame + head.size, .end = frame + size, .is_sound = true};
    *delete = (struct small_delete){.version = head.version,
                                    .correlation_id = head.correlation_id,
                                    .client_id = head.client_id,
                                    .client_id_size = head.client_id_size};
    if (!take_length(&rest, is_flexible, 4, &topics) || topics != 1 || !take_length(&rest, is_flexible, 2, &delete->topic_size) ||
        delete->topic_size == 0 || delete->topic_size > INT16_MAX || !take_text(&rest, delete->topic_size, &delete->topic) ||
        !take_length(&rest, is_flexible, 4, &partitions) || partitions != 1) {
        return false;
    }
    delete->partition = int32_at(take(&rest, 4));
    delete->offset = int64_at(take(&rest, 8));
    /* No tagged fields of the partition and of the topic. */
    if (delete->partition < 0 || delete->offset < 0 || (is_flexible && !(take_byte(&rest, 0) && take_byte(&rest, 0)))) {
        return false;
    }
    delete->timeout_ms = int32_at(take(&rest, 4));
    if (head.version >= LEADER_ONLY_SINCE) {
        uint8_t leader_only = *take(&rest, 1);
        if (leader_only > 1) {
            return false;
        }
        delete->leader_only = leader_only == 1;
    }
    return rest.is_sound && (!is_flexible || take_byte(&rest, 0)) && rest.at == rest.end;
}

size_t deleted_size(const struct small_delete *delete)
{
    bool is_flexible = delete->version >= FLEXIBLE_SINCE;
    /* Length, correlation id and throttle time, then partition, low watermark and error. */
    size_t size = 12 + delete->topic_size + 14 + (delete->version >= LEADER_ONLY_SINCE ? 8 : 0);
    /* One topic, its name's length, one partition; no tags of the header, the partition, the topic and the answer. */
    return size + (is_flexible ? 1 + compact_size(delete->topic_size + 1) + 1 + 4 : 4 + 2 + 4);
}

void write_deleted(const struct small_delete *delete, uint8_t *out)
{
    bool is_flexible = delete->version >= FLEXIBLE_SINCE;
    uint8_t *at = put(out, deleted_size(delete) - 4, 4);
    at = put(at, (uint32_t)delete->correlation_id, 4);
    at = put(at, 0, is_flexible ? 5 : 4);
    at = put_length(at, 1, is_flexible, 4);
    at = put_length(at, delete->topic_size, is_flexible, 2);
    memcpy(at, delete->topic, delete->topic_size);
    at = put_length(at + delete->topic_size, 1, is_flexible, 4);
    at = put(put(at, (uint32_t)delete->partition, 4), (uint64_t)delete->offset, 8);
    if (delete->version >= LEADER_ONLY_SINCE) {
        at = put(at, (uint64_t)delete->offset, 8);
    }
    (void)put(at, 0, is_flexible ? 5 : 2);
}
