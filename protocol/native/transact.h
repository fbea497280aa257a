/* Small requests of transactions: AddPartitionsToTxn for one topic, AddOffsetsToTxn, TxnOffsetCommit for one topic, and EndTxn. No Python
   here; the bytes may come from anybody. */

#ifndef LOWTIDE_TRANSACT_H
#define LOWTIDE_TRANSACT_H

#include "commit.h"
#include "fields.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A request with more partitions isn't small. */
#define ADDED_ROWS_MAX 64

/* Whose transaction it is. The id is in ASCII. */
struct transaction {
    int16_t version, producer_epoch;
    bool is_flexible;
    int32_t correlation_id;
    int64_t producer_id;
    struct text id;
};

struct added_partitions {
    struct transaction transaction;
    struct text topic;
    int32_t count, largest_partition;
    int32_t rows[ADDED_ROWS_MAX]; /* each once, none below 0 */
};

/* Each reads the request in `frame`; false if it isn't plain. A commit is of one topic, and without metadata. */
bool read_added_partitions(const uint8_t *frame, size_t size, struct added_partitions *added);
bool read_added_offsets(const uint8_t *frame, size_t size, struct transaction *transaction, struct text *group);
bool read_transactional_commit(const uint8_t *frame, size_t size, struct transaction *transaction, struct small_commit *commit);
bool read_end(const uint8_t *frame, size_t size, struct transaction *transaction, bool *is_commit);

/* The frame that answers it where all partitions were added: its size, and its bytes. That of a commit is in commit.h. */
size_t added_size(const struct added_partitions *added);
void write_added(const struct added_partitions *added, uint8_t *out);

/* The frame that answers the two others where there is no error. Returns its size. */
#define DONE_BYTES_MAX 16
size_t write_done(const struct transaction *transaction, uint8_t *out);

#endif
