/* OffsetCommit for one topic, and Heartbeat, with their answers: see commit.h. Source: protocol guide, OffsetCommit 2 to 10, Heartbeat 0
   to 4; KIP-345, KIP-482, KIP-848. */

#include "commit.h"

#include "fields.h"
#include "head.h"

#include <string.h>

#define OFFSET_COMMIT 8
#define COMMIT_FIRST_VERSION 2
#define COMMIT_LAST_VERSION 10
#define COMMIT_THROTTLE_SINCE 3
#define RETENTION_LAST_VERSION 4
#define LEADER_EPOCHS_SINCE 6
#define COMMIT_INSTANCES_SINCE 7
#define COMMIT_FLEXIBLE_SINCE 8
#define BROKER_RETENTION (-1)
#define NO_LEADER_EPOCH (-1)

#define HEARTBEAT 12
#define HEARTBEAT_LAST_VERSION 4
#define HEARTBEAT_THROTTLE_SINCE 1
#define HEARTBEAT_INSTANCES_SINCE 3
#define HEARTBEAT_FLEXIBLE_SINCE 4

/* ---------------------------------------------------------------- reading */
/* What an API and its versions differ in. */
struct form {
    int16_t api_key, first_version, last_version, instances_since, flexible_since;
};

/* Header, group, generation, member, and its instance: both requests begin with these. */
static bool take_member(const uint8_t *frame, size_t size, const struct form *form, struct member *member, struct rest *rest)
{
    struct request_head head;
    if (size < FIXED_HEAD_BYTES || !read_request_head(frame, size, int16_at(frame + 2) >= form->flexible_since, &head) ||
        head.api_key != form->api_key || head.version < form->first_version || head.version > form->last_version) {
        return false;
    }
    bool is_flexible = head.version >= form->flexible_since;
    *rest = (struct rest){.at = frame + head.size, .end = frame + size, .is_sound = true};
    *member = (struct member){.version = head.version, .correlation_id = head.correlation_id, .instance = {.size = -1}};
    if (!take_string(rest, is_flexible, &member->group)) {
        return false;
    }
    member->generation = int32_at(take(rest, 4));
    return take_string(rest, is_flexible, &member->id) &&
           (head.version < form->instances_since || take_nullable(rest, is_flexible, &member->instance));
}

static bool take_topic(struct rest *rest, const struct small_commit *commit, struct text *topic)
{
    if (!commit->has_topic_id) {
        return take_string(rest, commit->is_flexible, topic) && topic->size > 0;
    }
    static const uint8_t no_topic_id[COMMIT_TOPIC_ID_BYTES];
    topic->bytes = take(rest, COMMIT_TOPIC_ID_BYTES);
    topic->size = COMMIT_TOPIC_ID_BYTES;
    return rest->is_sound && memcmp(topic->bytes, no_topic_id, COMMIT_TOPIC_ID_BYTES) != 0;
}

static bool take_offset(struct rest *rest, bool is_flexible, bool has_leader_epochs, struct committed_offset *row)
{
    struct text metadata;
    row->partition = int32_at(take(rest, 4));
    row->offset = int64_at(take(rest, 8));
    row->leader_epoch = has_leader_epochs ? int32_at(take(rest, 4)) : NO_LEADER_EPOCH;
    return row->partition >= 0 && take_nullable(rest, is_flexible, &metadata) && metadata.size <= 0 && (!is_flexible || take_byte(rest, 0));
}

bool take_offsets(struct rest *rest, bool has_leader_epochs, struct small_commit *commit)
{
    size_t topics, rows;
    bool is_flexible = commit->is_flexible;
    if (!take_length(rest, is_flexible, 4, &topics) || topics != 1 || !take_topic(rest, commit, &commit->topic) ||
        !take_length(rest, is_flexible, 4, &rows) || rows == 0 || rows > COMMIT_ROWS_MAX) {
        return false;
    }
    commit->count = (int32_t)rows;
    commit->largest_partition = 0;
    for (size_t number = 0; number < rows; number++) {
        struct committed_offset *row = &commit->rows[number];
        if (!take_offset(rest, is_flexible, has_leader_epochs, row)) {
            return false;
        }
        if (row->partition > commit->largest_partition) {
            commit->largest_partition = row->partition;
        }
    }
    return take_end(rest, is_flexible, 2); /* Those of the topic and of the request. */
}

bool read_small_commit(const uint8_t *frame, size_t size, struct small_commit *commit)
{
    static const struct form form = {OFFSET_COMMIT, COMMIT_FIRST_VERSION, COMMIT_LAST_VERSION, COMMIT_INSTANCES_SINCE,
                                     COMMIT_FLEXIBLE_SINCE};
    struct rest rest;
    if (!take_member(frame, size, &form, &commit->member, &rest)) {
        return false;
    }
    int16_t version = commit->member.version;
    commit->is_flexible = version >= COMMIT_FLEXIBLE_SINCE;
    commit->has_throttle = version >= COMMIT_THROTTLE_SINCE;
    commit->has_topic_id = version >= COMMIT_TOPIC_IDS_SINCE;
    return (version > RETENTION_LAST_VERSION || int64_at(take(&rest, 8)) == BROKER_RETENTION) &&
           take_offsets(&rest, version >= LEADER_EPOCHS_SINCE, commit);
}

bool read_small_heartbeat(const uint8_t *frame, size_t size, struct member *member)
{
    static const struct form form = {HEARTBEAT, 0, HEARTBEAT_LAST_VERSION, HEARTBEAT_INSTANCES_SINCE, HEARTBEAT_FLEXIBLE_SINCE};
    struct rest rest;
    return take_member(frame, size, &form, member, &rest) && take_end(&rest, member->version >= HEARTBEAT_FLEXIBLE_SINCE, 1);
}

/* ---------------------------------------------------------------- answers */
size_t committed_size(const struct small_commit *commit)
{
    size_t rows = (size_t)commit->count, topic = (size_t)commit->topic.size;
    /* Length and correlation id, and of each row partition and error. */
    size_t size = 8 + (commit->has_throttle ? 4 : 0) + topic;
    if (!commit->is_flexible) {
        return size + 4 + 2 + 4 + rows * 6;
    }
    /* No tags of the header, the topic, each row and the answer; one topic. */
    return size + 4 + (commit->has_topic_id ? 0 : compact_size(topic + 1)) + compact_size(rows + 1) + rows * 7;
}

void write_committed(const struct small_commit *commit, uint8_t *out)
{
    bool is_flexible = commit->is_flexible;
    uint8_t *at = put(out, committed_size(commit) - 4, 4);
    at = put(at, (uint32_t)commit->member.correlation_id, 4);
    at = put(at, 0, (is_flexible ? 1 : 0) + (commit->has_throttle ? 4 : 0));
    at = put_length(at, 1, is_flexible, 4);
    if (!commit->has_topic_id) {
        at = put_length(at, (size_t)commit->topic.size, is_flexible, 2);
    }
    memcpy(at, commit->topic.bytes, (size_t)commit->topic.size);
    at = put_length(at + commit->topic.size, (size_t)commit->count, is_flexible, 4);
    for (int32_t number = 0; number < commit->count; number++) {
        at = put(at, (uint32_t)commit->rows[number].partition, 4);
        at = put(at, 0, is_flexible ? 3 : 2);
    }
    (void)put(at, 0, is_flexible ? 2 : 0);
}

size_t write_alive(const struct member *member, uint8_t *out)
{
    bool is_flexible = member->version >= HEARTBEAT_FLEXIBLE_SINCE;
    /* The correlation id, tags of header and body, the time that the client is to wait, the error. */
    unsigned zeros = (is_flexible ? 2 : 0) + (member->version >= HEARTBEAT_THROTTLE_SINCE ? 4 : 0) + 2;
    uint8_t *at = put(out, 4 + zeros, 4);
    at = put(at, (uint32_t)member->correlation_id, 4);
    return (size_t)(put(at, 0, zeros) - out);
}
