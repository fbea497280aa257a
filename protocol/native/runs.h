/* Small Produce requests for the same partition, which follow each other on a connection, or have come on several in the same moment: read
   together, to be written together.

   No Python here; as in produce.h the bytes may come from anybody. */

#ifndef LOWTIDE_RUNS_H
#define LOWTIDE_RUNS_H

#include "produce.h"

/* Requests: several times what clients keep in flight (Java: 5). Together they hold the loop for a fraction of a millisecond. */
#define RUN_MAX 16

struct produce_run {
    size_t count;
    size_t size; /* of their frames, with the lengths before them */
    struct small_produce requests[RUN_MAX];
};

/* Reads the requests whose frames begin at `bytes`, each behind its length, of at most `frame_max` bytes: as many as are whole, have a
   small batch (`read_small_produce`), and have version, acks, timeout, topic, partition and producer of the first one; of an idempotent
   producer the sequences follow each other without a gap. False if those are fewer than two. */
bool read_produce_run(const uint8_t *bytes, size_t size, size_t frame_max, struct produce_run *run);

/* Requests of so many connections: of more, two rounds. */
#define ROUND_MAX 64

/* Those that are alike, by their places in the round. */
struct produce_group {
    size_t count;
    uint8_t members[ROUND_MAX];
};

struct produce_round {
    size_t count;
    size_t group_count;
    struct small_produce requests[ROUND_MAX];
    struct produce_group groups[ROUND_MAX];
};

/* Reads the requests whose frames begin at `bytes`, each behind its length: as many as are whole, `ROUND_MAX` at most. Those that have a
   small batch of no transaction are in the group of those with the same version, acks, timeout, topic and partition. An idempotent producer
   has one request in a group: what else it has there, and what isn't a small request, is in no group. False if no group has two. */
bool read_produce_round(const uint8_t *bytes, size_t size, struct produce_round *round);

#endif
