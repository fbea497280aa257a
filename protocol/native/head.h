/* The header of a request, read from untrusted bytes. */

#ifndef LOWTIDE_HEAD_H
#define LOWTIDE_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* API key, version, correlation id and the length of the client id. */
#define FIXED_HEAD_BYTES 10

struct request_head {
    int16_t api_key, version;
    int32_t correlation_id;
    const uint8_t *client_id;
    int16_t client_id_size; /* -1 for none */
    size_t size;            /* the position of the body */
};

/* Reads the header of a request; returns false if it is truncated, has tags, or a client id that is not ASCII. */
bool read_request_head(const uint8_t *frame, size_t size, bool is_flexible, struct request_head *head);

bool is_ascii(const uint8_t *text, size_t size);

#endif
