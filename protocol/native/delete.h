/* A DeleteRecords request as most are: one partition, to an offset. No Python here; the bytes may come from anybody. */

#ifndef LOWTIDE_DELETE_H
#define LOWTIDE_DELETE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct small_delete {
    int16_t version;
    int32_t correlation_id;
    const uint8_t *client_id, *topic; /* in ASCII */
    int16_t client_id_size;           /* -1 for none */
    size_t topic_size;
    int32_t partition, timeout_ms;
    int64_t offset;
    bool leader_only;
};

/* Reads the request in `frame`: one partition, not below 0, of one topic, and an offset, not below 0. False for any other. */
bool read_small_delete(const uint8_t *frame, size_t size, struct small_delete *delete);

/* The frame that answers it where that offset is the low watermark and the leader's log start: its size, and its bytes. */
size_t deleted_size(const struct small_delete *delete);
void write_deleted(const struct small_delete *delete, uint8_t *out);

#endif
