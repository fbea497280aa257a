/* Small requests of transactions, with their answers: see transact.h. Source: protocol guide, AddPartitionsToTxn 0 to 3, AddOffsetsToTxn 0
   to 4, TxnOffsetCommit 0 to 6, EndTxn 0 to 4; KIP-98, KIP-447, KIP-482. */

#include "transact.h"

#include "head.h"

#include <string.h>

#define ADD_PARTITIONS_TO_TXN 24
#define ADDED_LAST_VERSION 3 /* Those after it are for brokers. */
#define ADD_OFFSETS_TO_TXN 25
#define ADD_OFFSETS_LAST_VERSION 4
#define END_TXN 26
#define END_LAST_VERSION 4 /* The answers of later ones have the next epoch. */
#define TXN_OFFSET_COMMIT 28
#define TXN_COMMIT_LAST_VERSION 6
#define TXN_COMMIT_LEADER_EPOCHS_SINCE 2
#define TXN_COMMIT_MEMBERS_SINCE 3
#define TXN_COMMIT_TOPIC_IDS_SINCE 6
#define TXN_FLEXIBLE_SINCE 3 /* of all four */
#define NO_GENERATION (-1)

/* ---------------------------------------------------------------- reading */
/* The header, and the transactional id, with which all begin. */
static bool take_transaction(const uint8_t *frame, size_t size, int16_t api_key, int16_t last_version, struct transaction *transaction,
                             struct rest *rest)
{
    struct request_head head;
    if (size < FIXED_HEAD_BYTES || !read_request_head(frame, size, int16_at(frame + 2) >= TXN_FLEXIBLE_SINCE, &head) ||
        head.api_key != api_key || head.version < 0 || head.version > last_version) {
        return false;
    }
    *rest = (struct rest){.at = frame + head.size, .end = frame + size, .is_sound = true};
    *transaction = (struct transaction){
        .version = head.version, .is_flexible = head.version >= TXN_FLEXIBLE_SINCE, .correlation_id = head.correlation_id};
    return take_string(rest, transaction->is_flexible, &transaction->id);
}

static void take_producer(struct rest *rest, struct transaction *transaction)
{
    transaction->producer_id = int64_at(take(rest, 8));
    transaction->producer_epoch = int16_at(take(rest, 2));
}

static bool take_partition(struct rest *rest, struct added_partitions *added)
{
    int32_t partition = int32_at(take(rest, 4));
    if (partition < 0) {
        return false;
    }
    for (int32_t number = 0; number < added->count; number++) {
        if (added->rows[number] == partition) {
            return false;
        }
    }
    added->rows[added->count++] = partition;
    if (partition > added->largest_partition) {
        added->largest_partition = partition;
    }
    return rest->is_sound;
}

bool read_added_partitions(const uint8_t *frame, size_t size, struct added_partitions *added)
{
    struct rest rest;
    size_t topics, rows;
    if (!take_transaction(frame, size, ADD_PARTITIONS_TO_TXN, ADDED_LAST_VERSION, &added->transaction, &rest)) {
        return false;
    }
    bool is_flexible = added->transaction.is_flexible;
    take_producer(&rest, &added->transaction);
    if (!take_length(&rest, is_flexible, 4, &topics) || topics != 1 || !take_string(&rest, is_flexible, &added->topic) ||
        added->topic.size == 0 || !take_length(&rest, is_flexible, 4, &rows) || rows == 0 || rows > ADDED_ROWS_MAX) {
        return false;
    }
    added->count = added->largest_partition = 0;
    for (; rows > 0; rows--) {
        if (!take_partition(&rest, added)) {
            return false;
        }
    }
    return take_end(&rest, is_flexible, 2);
}

bool read_added_offsets(const uint8_t *frame, size_t size, struct transaction *transaction, struct text *group)
{
    struct rest rest;
    if (!take_transaction(frame, size, ADD_OFFSETS_TO_TXN, ADD_OFFSETS_LAST_VERSION, transaction, &rest)) {
        return false;
    }
    take_producer(&rest, transaction);
    return take_string(&rest, transaction->is_flexible, group) && take_end(&rest, transaction->is_flexible, 1);
}

bool read_transactional_commit(const uint8_t *frame, size_t size, struct transaction *transaction, struct small_commit *commit)
{
    struct rest rest;
    if (!take_transaction(frame, size, TXN_OFFSET_COMMIT, TXN_COMMIT_LAST_VERSION, transaction, &rest)) {
        return false;
    }
    int16_t version = transaction->version;
    bool is_flexible = transaction->is_flexible;
    struct member *member = &commit->member;
    static const uint8_t nothing[1];
    *member = (struct member){.version = version,
                              .correlation_id = transaction->correlation_id,
                              .generation = NO_GENERATION,
                              .id = {.bytes = nothing, .size = 0},
                              .instance = {.size = -1}};
    if (!take_string(&rest, is_flexible, &member->group)) {
        return false;
    }
    take_producer(&rest, transaction);
    if (version >= TXN_COMMIT_MEMBERS_SINCE) {
        member->generation = int32_at(take(&rest, 4));
        if (!take_string(&rest, is_flexible, &member->id) || !take_nullable(&rest, is_flexible, &member->instance)) {
            return false;
        }
    }
    commit->is_flexible = is_flexible;
    commit->has_throttle = true;
    commit->has_topic_id = version >= TXN_COMMIT_TOPIC_IDS_SINCE;
    return take_offsets(&rest, version >= TXN_COMMIT_LEADER_EPOCHS_SINCE, commit);
}

bool read_end(const uint8_t *frame, size_t size, struct transaction *transaction, bool *is_commit)
{
    struct rest rest;
    if (!take_transaction(frame, size, END_TXN, END_LAST_VERSION, transaction, &rest)) {
        return false;
    }
    take_producer(&rest, transaction);
    uint8_t committed = *take(&rest, 1);
    *is_commit = committed == 1;
    return committed <= 1 && take_end(&rest, transaction->is_flexible, 1);
}

/* ---------------------------------------------------------------- answers */
size_t added_size(const struct added_partitions *added)
{
    size_t rows = (size_t)added->count, topic = (size_t)added->topic.size;
    /* Length, correlation id, the time that the client is to wait; of each row partition and error. */
    if (!added->transaction.is_flexible) {
        return 12 + 4 + 2 + topic + 4 + rows * 6;
    }
    /* No tags of the header, the topic, each row and the answer; one topic. */
    return 12 + 4 + compact_size(topic + 1) + topic + compact_size(rows + 1) + rows * 7;
}

void write_added(const struct added_partitions *added, uint8_t *out)
{
    bool is_flexible = added->transaction.is_flexible;
    uint8_t *at = put(out, added_size(added) - 4, 4);
    at = put(at, (uint32_t)added->transaction.correlation_id, 4);
    at = put(at, 0, is_flexible ? 5 : 4);
    at = put_length(at, 1, is_flexible, 4);
    at = put_length(at, (size_t)added->topic.size, is_flexible, 2);
    memcpy(at, added->topic.bytes, (size_t)added->topic.size);
    at = put_length(at + added->topic.size, (size_t)added->count, is_flexible, 4);
    for (int32_t number = 0; number < added->count; number++) {
        at = put(at, (uint32_t)added->rows[number], 4);
        at = put(at, 0, is_flexible ? 3 : 2);
    }
    (void)put(at, 0, is_flexible ? 2 : 0);
}

size_t write_done(const struct transaction *transaction, uint8_t *out)
{
    /* Tags of header and body, the time that the client is to wait, the error. */
    unsigned zeros = (transaction->is_flexible ? 2 : 0) + 4 + 2;
    uint8_t *at = put(out, 4 + zeros, 4);
    at = put(at, (uint32_t)transaction->correlation_id, 4);
    return (size_t)(put(at, 0, zeros) - out);
}
