/* Small requests of a group's members: OffsetCommit for one topic, and Heartbeat. No Python here; the bytes may come from anybody. */

#ifndef LOWTIDE_COMMIT_H
#define LOWTIDE_COMMIT_H

#include "fields.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A request with more offsets isn't small. */
#define COMMIT_ROWS_MAX 256

#define COMMIT_TOPIC_IDS_SINCE 10
#define COMMIT_TOPIC_ID_BYTES 16

/* Who asks. All are in ASCII. */
struct member {
    int16_t version;
    int32_t correlation_id, generation;
    struct text group, id, instance;
};

struct committed_offset {
    int32_t partition, leader_epoch;
    int64_t offset;
};

struct small_commit {
    struct member member;
    bool is_flexible, has_throttle, has_topic_id; /* what its version has */
    struct text topic;                            /* its name, or its id where the version has ids */
    int32_t count, largest_partition;
    struct committed_offset rows[COMMIT_ROWS_MAX];
};

/* Reads the OffsetCommit request in `frame`: one topic, without metadata, and no time for which offsets are to be kept. False for any
   other. */
bool read_small_commit(const uint8_t *frame, size_t size, struct small_commit *commit);

/* The rest of a commit, where member and version are known. */
bool take_offsets(struct rest *rest, bool has_leader_epochs, struct small_commit *commit);

/* The frame that answers it where all offsets were kept: its size, and its bytes. */
size_t committed_size(const struct small_commit *commit);
void write_committed(const struct small_commit *commit, uint8_t *out);

/* Reads the Heartbeat request in `frame`. False if it isn't plain. */
bool read_small_heartbeat(const uint8_t *frame, size_t size, struct member *member);

/* The frame that answers a member that may go on as before. */
#define HEARTBEAT_ANSWER_BYTES_MAX 16
size_t write_alive(const struct member *member, uint8_t *out);

#endif
