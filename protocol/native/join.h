/* A classic group's members that join again and ask for their assignments: JoinGroup and SyncGroup, with their answers. No Python here; the
   bytes may come from anybody. */

#ifndef LOWTIDE_JOIN_H
#define LOWTIDE_JOIN_H

#include "fields.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A request with more rows isn't small: protocols of a member, or assignments by their leader. Nor is an answer with more members. */
#define PROTOCOLS_MAX 8
#define MEMBERS_MAX 64

/* Of what a member says for a protocol, and of an assignment, inclusive. */
#define CONTENT_BYTES_MAX (1 << 20)

/* A name, and what belongs to it. */
struct named_bytes {
    struct text name, content;
};

/* A member that has an id already. Texts are in ASCII, and group and member not empty. */
struct small_join {
    int16_t version;
    int32_t correlation_id, session_timeout_ms, rebalance_timeout_ms;
    struct text client, group, member, instance, protocol_type;
    int32_t count;
    struct named_bytes protocols[PROTOCOLS_MAX]; /* one at least */
};

/* The same for SyncGroup; without assignments where the member isn't the leader. */
struct small_sync {
    int16_t version;
    int32_t correlation_id, generation;
    struct text group, member, instance, protocol_type, protocol_name;
    int32_t count;
    struct named_bytes assignments[MEMBERS_MAX];
};

/* Each reads the request in `frame`; false if it isn't plain. */
bool read_small_join(const uint8_t *frame, size_t size, struct small_join *join);
bool read_small_sync(const uint8_t *frame, size_t size, struct small_sync *sync);

struct joined_member {
    struct text id, instance, metadata;
};

/* What a member is answered that has joined. A size of -1 is a null. */
struct joined {
    int16_t version;
    int32_t correlation_id, generation;
    bool skips_assignment;
    struct text protocol_type, protocol_name, leader, member;
    int32_t count;
    struct joined_member members[MEMBERS_MAX];
};

struct synced {
    int16_t version;
    int32_t correlation_id;
    struct text protocol_type, protocol_name, assignment;
};

/* The frames that answer where there is no error: their sizes, 0 for what no such answer can have, and their bytes. */
size_t joined_size(const struct joined *joined);
void write_joined(const struct joined *joined, uint8_t *out);
size_t synced_size(const struct synced *synced);
void write_synced(const struct synced *synced, uint8_t *out);

#endif
