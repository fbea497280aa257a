/* What the programs here share: numbers to decide by, inputs of their exact size, and how long they run. */

#ifndef LOWTIDE_FUZZING_H
#define LOWTIDE_FUZZING_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(condition)                                                                                                                     \
    do {                                                                                                                                     \
        if (!(condition)) {                                                                                                                  \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                                                          \
            abort();                                                                                                                         \
        }                                                                                                                                    \
    } while (0)

static inline uint8_t *copy(const uint8_t *bytes, size_t size)
{
    uint8_t *copied = malloc(size + (size == 0));
    CHECK(copied != NULL);
    memcpy(copied, bytes, size);
    return copied;
}

static inline uint8_t *room(int64_t size)
{
    uint8_t *bytes = malloc((size_t)size + (size == 0));
    CHECK(bytes != NULL);
    memset(bytes, 0xff, (size_t)size + (size == 0));
    return bytes;
}

static uint64_t state;

static inline uint64_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Big-endian, as all numbers of the protocol. */
static inline uint8_t *write_number(uint8_t *at, uint64_t value, unsigned bytes)
{
    while (bytes-- > 0) {
        *at++ = (uint8_t)(value >> 8 * bytes);
    }
    return at;
}

/* A length of a name or an array: in flexible versions an unsigned varint of one more. */
static inline uint8_t *write_length(uint8_t *at, size_t length, int is_flexible, unsigned bytes)
{
    if (!is_flexible) {
        return write_number(at, length, bytes);
    }
    for (length++; length >= 0x80; length >>= 7) {
        *at++ = (uint8_t)(length | 0x80);
    }
    *at++ = (uint8_t)length;
    return at;
}

#endif
