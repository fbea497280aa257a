/* JoinGroup and SyncGroup with their answers: see join.h. Source: protocol guide, JoinGroup 2 to 9, SyncGroup 0 to 5; KIP-345, KIP-482,
   KIP-559, KIP-800, KIP-814. */

#include "join.h"

#include "head.h"

#include <string.h>

#define JOIN_GROUP 11
#define JOIN_FIRST_VERSION 2
#define JOIN_LAST_VERSION 9
#define JOIN_INSTANCES_SINCE 5
#define JOIN_FLEXIBLE_SINCE 6
#define JOIN_PROTOCOL_TYPE_SINCE 7
#define JOIN_REASON_SINCE 8
#define SKIP_ASSIGNMENT_SINCE 9

#define SYNC_GROUP 14
#define SYNC_LAST_VERSION 5
#define SYNC_THROTTLE_SINCE 1
#define SYNC_INSTANCES_SINCE 3
#define SYNC_FLEXIBLE_SINCE 4
#define SYNC_PROTOCOLS_SINCE 5

/* ---------------------------------------------------------------- reading */
static bool take_content(struct rest *rest, bool is_flexible, struct text *content)
{
    size_t size;
    if (!take_length(rest, is_flexible, 4, &size) || size > CONTENT_BYTES_MAX) {
        return false;
    }
    content->bytes = take(rest, size);
    content->size = (int32_t)size;
    return rest->is_sound;
}

static bool take_rows(struct rest *rest, bool is_flexible, size_t maximum, struct named_bytes *rows, int32_t *count)
{
    size_t given;
    if (!take_length(rest, is_flexible, 4, &given) || given > maximum) {
        return false;
    }
    *count = (int32_t)given;
    for (size_t number = 0; number < given; number++) {
        if (!take_string(rest, is_flexible, &rows[number].name) || !take_content(rest, is_flexible, &rows[number].content) ||
            (is_flexible && !take_byte(rest, 0))) {
            return false;
        }
    }
    return true;
}

static bool take_some(struct rest *rest, bool is_flexible, struct text *text)
{
    return take_string(rest, is_flexible, text) && text->size > 0;
}

bool read_small_join(const uint8_t *frame, size_t size, struct small_join *join)
{
    struct request_head head;
    struct text reason;
    if (size < FIXED_HEAD_BYTES || !read_request_head(frame, size, int16_at(frame + 2) >= JOIN_FLEXIBLE_SINCE, &head) ||
        head.api_key != JOIN_GROUP || head.version < JOIN_FIRST_VERSION || head.version > JOIN_LAST_VERSION) {
        return false;
    }
    bool is_flexible = head.version >= JOIN_FLEXIBLE_SINCE;
    struct rest rest = {.at = frame + head.size, .end = frame + size, .is_sound = true};
    join->version = head.version;
    join->correlation_id = head.correlation_id;
    join->client = (struct text){.bytes = head.client_id, .size = head.client_id_size};
    join->instance = (struct text){.size = -1};
    if (!take_some(&rest, is_flexible, &join->group)) {
        return false;
    }
    join->session_timeout_ms = int32_at(take(&rest, 4));
    join->rebalance_timeout_ms = int32_at(take(&rest, 4));
    return take_some(&rest, is_flexible, &join->member) &&
           (head.version < JOIN_INSTANCES_SINCE || take_nullable(&rest, is_flexible, &join->instance)) &&
           take_string(&rest, is_flexible, &join->protocol_type) &&
           take_rows(&rest, is_flexible, PROTOCOLS_MAX, join->protocols, &join->count) && join->count > 0 &&
           (head.version < JOIN_REASON_SINCE || take_nullable(&rest, is_flexible, &reason)) && take_end(&rest, is_flexible, 1);
}

bool read_small_sync(const uint8_t *frame, size_t size, struct small_sync *sync)
{
    struct request_head head;
    if (size < FIXED_HEAD_BYTES || !read_request_head(frame, size, int16_at(frame + 2) >= SYNC_FLEXIBLE_SINCE, &head) ||
        head.api_key != SYNC_GROUP || head.version < 0 || head.version > SYNC_LAST_VERSION) {
        return false;
    }
    bool is_flexible = head.version >= SYNC_FLEXIBLE_SINCE;
    struct rest rest = {.at = frame + head.size, .end = frame + size, .is_sound = true};
    sync->version = head.version;
    sync->correlation_id = head.correlation_id;
    sync->instance = sync->protocol_type = sync->protocol_name = (struct text){.size = -1};
    if (!take_some(&rest, is_flexible, &sync->group)) {
        return false;
    }
    sync->generation = int32_at(take(&rest, 4));
    return take_some(&rest, is_flexible, &sync->member) &&
           (head.version < SYNC_INSTANCES_SINCE || take_nullable(&rest, is_flexible, &sync->instance)) &&
           (head.version < SYNC_PROTOCOLS_SINCE ||
            (take_string(&rest, is_flexible, &sync->protocol_type) && take_string(&rest, is_flexible, &sync->protocol_name))) &&
           take_rows(&rest, is_flexible, MEMBERS_MAX, sync->assignments, &sync->count) && take_end(&rest, is_flexible, 1);
}

/* ---------------------------------------------------------------- answers */
static bool is_string(const struct text *text, bool may_be_null)
{
    return text->size <= INT16_MAX && text->size >= (may_be_null ? -1 : 0);
}

static bool is_content(const struct text *content)
{
    return content->size >= 0 && content->size <= CONTENT_BYTES_MAX;
}

/* `bytes`: of a length that isn't compact. */
static size_t text_size(const struct text *text, bool is_flexible, unsigned bytes)
{
    size_t size = text->size < 0 ? 0 : (size_t)text->size;
    return size + (!is_flexible ? bytes : text->size < 0 ? 1 : compact_size(size + 1));
}

static uint8_t *put_text(uint8_t *at, const struct text *text, bool is_flexible, unsigned bytes)
{
    if (text->size < 0) {
        return is_flexible ? put(at, 0, 1) : put(at, UINT32_MAX, bytes);
    }
    at = put_length(at, (size_t)text->size, is_flexible, bytes);
    if (text->size > 0) {
        memcpy(at, text->bytes, (size_t)text->size);
    }
    return at + text->size;
}

size_t joined_size(const struct joined *joined)
{
    int16_t version = joined->version;
    bool is_flexible = version >= JOIN_FLEXIBLE_SINCE, has_type = version >= JOIN_PROTOCOL_TYPE_SINCE;
    if (version < JOIN_FIRST_VERSION || version > JOIN_LAST_VERSION || joined->count < 0 || joined->count > MEMBERS_MAX ||
        !is_string(&joined->protocol_type, true) || !is_string(&joined->protocol_name, has_type) || !is_string(&joined->leader, false) ||
        !is_string(&joined->member, false) || (joined->skips_assignment && version < SKIP_ASSIGNMENT_SINCE)) {
        return 0;
    }
    /* Length and correlation id; the time that the client is to wait, no error, the generation. */
    size_t size = 8 + 4 + 2 + 4 + (has_type ? text_size(&joined->protocol_type, true, 2) : 0);
    size += text_size(&joined->protocol_name, is_flexible, 2) + text_size(&joined->leader, is_flexible, 2);
    size += (version >= SKIP_ASSIGNMENT_SINCE ? 1 : 0) + text_size(&joined->member, is_flexible, 2);
    for (int32_t number = 0; number < joined->count; number++) {
        const struct joined_member *member = &joined->members[number];
        if (!is_string(&member->id, false) || !is_string(&member->instance, true) || !is_content(&member->metadata)) {
            return 0;
        }
        size += text_size(&member->id, is_flexible, 2) + text_size(&member->metadata, is_flexible, 4) + (is_flexible ? 1 : 0);
        size += version >= JOIN_INSTANCES_SINCE ? text_size(&member->instance, is_flexible, 2) : 0;
    }
    /* Tags of header and body; the count takes a byte where it is compact. */
    return size + (is_flexible ? 3 : 4);
}

void write_joined(const struct joined *joined, uint8_t *out)
{
    int16_t version = joined->version;
    bool is_flexible = version >= JOIN_FLEXIBLE_SINCE;
    uint8_t *at = put(out, joined_size(joined) - 4, 4);
    at = put(at, (uint32_t)joined->correlation_id, 4);
    at = put(at, 0, (is_flexible ? 1 : 0) + 4 + 2);
    at = put(at, (uint32_t)joined->generation, 4);
    if (version >= JOIN_PROTOCOL_TYPE_SINCE) {
        at = put_text(at, &joined->protocol_type, is_flexible, 2);
    }
    at = put_text(at, &joined->protocol_name, is_flexible, 2);
    at = put_text(at, &joined->leader, is_flexible, 2);
    if (version >= SKIP_ASSIGNMENT_SINCE) {
        *at++ = joined->skips_assignment;
    }
    at = put_text(at, &joined->member, is_flexible, 2);
    at = put_length(at, (size_t)joined->count, is_flexible, 4);
    for (int32_t number = 0; number < joined->count; number++) {
        const struct joined_member *member = &joined->members[number];
        at = put_text(at, &member->id, is_flexible, 2);
        if (version >= JOIN_INSTANCES_SINCE) {
            at = put_text(at, &member->instance, is_flexible, 2);
        }
        at = put_text(at, &member->metadata, is_flexible, 4);
        at = put(at, 0, is_flexible ? 1 : 0);
    }
    (void)put(at, 0, is_flexible ? 1 : 0);
}

size_t synced_size(const struct synced *synced)
{
    int16_t version = synced->version;
    bool is_flexible = version >= SYNC_FLEXIBLE_SINCE, has_protocols = version >= SYNC_PROTOCOLS_SINCE;
    if (version < 0 || version > SYNC_LAST_VERSION || !is_string(&synced->protocol_type, true) ||
        !is_string(&synced->protocol_name, true) ||
        !is_content(&synced->assignment)) {
        return 0;
    }
    /* Length and correlation id, the time that the client is to wait, no error; tags of header and body. */
    size_t size = 8 + (version >= SYNC_THROTTLE_SINCE ? 4 : 0) + 2 + text_size(&synced->assignment, is_flexible, 4) + (is_flexible ? 2 : 0);
    return size + (has_protocols ? text_size(&synced->protocol_type, true, 2) + text_size(&synced->protocol_name, true, 2) : 0);
}

void write_synced(const struct synced *synced, uint8_t *out)
{
    int16_t version = synced->version;
    bool is_flexible = version >= SYNC_FLEXIBLE_SINCE;
    uint8_t *at = put(out, synced_size(synced) - 4, 4);
    at = put(at, (uint32_t)synced->correlation_id, 4);
    at = put(at, 0, (is_flexible ? 1 : 0) + (version >= SYNC_THROTTLE_SINCE ? 4 : 0) + 2);
    if (version >= SYNC_PROTOCOLS_SINCE) {
        at = put_text(at, &synced->protocol_type, true, 2);
        at = put_text(at, &synced->protocol_name, true, 2);
    }
    at = put_text(at, &synced->assignment, is_flexible, 4);
    (void)put(at, 0, is_flexible ? 1 : 0);
}
