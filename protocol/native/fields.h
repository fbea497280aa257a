/* Reads the fields of requests from untrusted bytes, and writes those of responses. Source: protocol guide. */

#ifndef LOWTIDE_FIELDS_H
#define LOWTIDE_FIELDS_H

#include "head.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ---------------------------------------------------------------- reading */
static inline uint64_t number_at(const uint8_t *place, unsigned bytes)
{
    uint64_t value = 0;
    while (bytes-- > 0) {
        value = value << 8 | *place++;
    }
    return value;
}

static inline int16_t int16_at(const uint8_t *place)
{
    return (int16_t)number_at(place, 2);
}

static inline int32_t int32_at(const uint8_t *place)
{
    return (int32_t)number_at(place, 4);
}

static inline int64_t int64_at(const uint8_t *place)
{
    return (int64_t)number_at(place, 8);
}

/* The rest of a request. A read beyond the end returns zeros and clears `is_sound`. */
struct rest {
    const uint8_t *at, *end;
    bool is_sound;
};

static inline const uint8_t *take(struct rest *rest, size_t size)
{
    static const uint8_t zeros[8];
    if (!rest->is_sound || size > (size_t)(rest->end - rest->at)) {
        rest->is_sound = false;
        return zeros;
    }
    rest->at += size;
    return rest->at - size;
}

static inline bool take_byte(struct rest *rest, uint8_t expected)
{
    return *take(rest, 1) == expected && rest->is_sound;
}

/* Takes an unsigned varint of at most three bytes, in its shortest form: enough for any length in a small request. */
static inline bool take_varint(struct rest *rest, size_t *value)
{
    *value = 0;
    for (unsigned shift = 0; shift < 21; shift += 7) {
        uint8_t byte = *take(rest, 1);
        if (byte == 0 && shift > 0) {
            return false;
        }
        *value |= (size_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            return rest->is_sound;
        }
    }
    return false;
}

/* Takes a length that is not null; compact ones are one higher. */
static inline bool take_length(struct rest *rest, bool is_flexible, unsigned bytes, size_t *length)
{
    if (is_flexible) {
        if (!take_varint(rest, length) || *length == 0) {
            return false;
        }
        *length -= 1;
        return true;
    }
    int64_t given = bytes == 2 ? int16_at(take(rest, 2)) : int32_at(take(rest, 4));
    *length = (size_t)given;
    return rest->is_sound && given >= 0;
}

static inline bool take_text(struct rest *rest, size_t size, const uint8_t **text)
{
    *text = take(rest, size);
    return rest->is_sound && is_ascii(*text, size);
}

/* A text; the size is -1 for null. */
struct text {
    const uint8_t *bytes;
    int32_t size;
};

static inline bool take_string(struct rest *rest, bool is_flexible, struct text *text)
{
    size_t size;
    if (!take_length(rest, is_flexible, 2, &size) || size > INT16_MAX || !take_text(rest, size, &text->bytes)) {
        return false;
    }
    text->size = (int32_t)size;
    return true;
}

/* Takes a null; returns false if the next field is not null. */
static inline bool take_null(struct rest *rest, bool is_flexible)
{
    static const uint8_t null[2] = {0xff, 0xff};
    size_t size = is_flexible ? 1 : 2;
    if (!rest->is_sound || (size_t)(rest->end - rest->at) < size ||
        (is_flexible ? *rest->at != 0 : memcmp(rest->at, null, 2) != 0)) {
        return false;
    }
    rest->at += size;
    return true;
}

static inline bool take_nullable(struct rest *rest, bool is_flexible, struct text *text)
{
    if (take_null(rest, is_flexible)) {
        text->bytes = NULL;
        text->size = -1;
        return true;
    }
    return take_string(rest, is_flexible, text);
}

/* Whether the request ends here, with so many tagged fields that there are none of. */
static inline bool take_end(struct rest *rest, bool is_flexible, unsigned tags)
{
    for (; is_flexible && tags > 0; tags--) {
        if (!take_byte(rest, 0)) {
            return false;
        }
    }
    return rest->is_sound && rest->at == rest->end;
}

/* ---------------------------------------------------------------- writing */
/* The size of a compact length; that of a topic name is at most three. */
static inline size_t compact_size(size_t value)
{
    return value < 1 << 7 ? 1 : value < 1 << 14 ? 2 : 3;
}

static inline uint8_t *put(uint8_t *at, uint64_t value, unsigned bytes)
{
    for (unsigned left = bytes; left > 0; left--) {
        *at++ = (uint8_t)(value >> 8 * (left - 1));
    }
    return at;
}

static inline uint8_t *put_length(uint8_t *at, size_t length, bool is_flexible, unsigned bytes)
{
    if (!is_flexible) {
        return put(at, length, bytes);
    }
    for (length++; length >= 0x80; length >>= 7) {
        *at++ = (uint8_t)(length | 0x80);
    }
    *at++ = (uint8_t)length;
    return at;
}

#endif
