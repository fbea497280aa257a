/* The header of a request. No Python here; the bytes may come from anybody. */

#ifndef LOWTIDE_HEAD_H
#define LOWTIDE_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* API key, version, correlation id and the length of the client id: every request has these. */
#define FIXED_HEAD_BYTES 10

struct request_head {
    int16_t api_key, version;
    int32_t correlation_id;
    const uint8_t *client_id;
    int16_t client_id_size; /* -1 for none */
    size_t size;            /* where the body begins */
};

/* Reads the header of the request in `frame`. False if it is cut short, has tags, or a client id beyond ASCII. */
bool read_request_head(const uint8_t *frame, size_t size, bool is_flexible, struct request_head *head);

/* Whether no byte is above 0x7f. */
bool is_ascii(const uint8_t *text, size_t size);

#endif
