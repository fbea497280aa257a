/* Small Produce requests that follow each other on a connection, for the same partition: read together, to be written together.

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
   small batch (`read_small_produce`), and have version, acks, topic, partition and producer of the first one; of an idempotent producer the
   sequences follow each other without a gap. False if those are fewer than two. */
bool read_produce_run(const uint8_t *bytes, size_t size, size_t frame_max, struct produce_run *run);

#endif
