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

/* What a program was called with: for how many seconds it runs, and the seed of its numbers. */
struct session {
    uint64_t seed;
    time_t end;
};

static inline struct session begin(int count, char **arguments)
{
    struct session session = {.seed = count > 2 ? strtoull(arguments[2], NULL, 10) : 1};
    session.end = time(NULL) + (count > 1 ? atol(arguments[1]) : 10);
    state = session.seed * 2654435761u + 88172645463325252u;
    return session;
}

/* Says how many inputs were tried. Returns what `main` returns. */
static inline int finish(const struct session *session, unsigned long runs)
{
    printf("%lu runs from seed %llu\n", runs, (unsigned long long)session->seed);
    return 0;
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

static inline uint8_t *write_name(uint8_t *at, size_t size, int is_flexible)
{
    at = write_length(at, size, is_flexible, 2);
    memset(at, 'a' + (int)(next() % 26), size);
    return at + size;
}

static inline uint8_t *write_null(uint8_t *at, int is_flexible)
{
    return is_flexible ? write_number(at, 0, 1) : write_number(at, UINT16_MAX, 2);
}

/* The header of a request: API key, version, correlation id, and a client id that may be null. */
static inline uint8_t *write_head(uint8_t *at, unsigned key, unsigned version, int is_flexible)
{
    at = write_number(at, key, 2);
    at = write_number(at, version, 2);
    at = write_number(at, next(), 4);
    at = next() % 4 ? write_name(at, next() % 20, 0) : write_null(at, 0);
    return write_number(at, 0, is_flexible ? 1 : 0);
}

/* Whether an answer says of itself how long it is, and ends in no error and no tags. */
static inline void check_answer(const uint8_t *answer, size_t size)
{
    CHECK(answer[0] == 0 && ((size_t)answer[1] << 16 | (size_t)answer[2] << 8 | answer[3]) == size - 4);
    CHECK(answer[size - 1] == 0);
}

/* Changes up to two bytes of a request. Returns how many of its bytes are to be tried: all, or some that come first. */
static inline size_t mutate(uint8_t *frame, size_t size)
{
    for (uint64_t changes = next() % 3; changes > 0; changes--) {
        frame[next() % size] = (uint8_t)(next() % 4 == 0 ? 0xff - next() % 3 : next() % 2 ? next() % 4 : next());
    }
    return next() % 4 == 0 ? next() % (size + 1) : size;
}

#endif
