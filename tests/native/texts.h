/* Whether what was read of a request lies within it. */

#ifndef LOWTIDE_TEXTS_H
#define LOWTIDE_TEXTS_H

#include "fields.h"
#include "fuzzing.h"

static inline void check_text(const struct text *text, const uint8_t *input, size_t size)
{
    CHECK(text->size >= -1 && (text->size <= 0 || (text->bytes >= input && text->bytes + text->size <= input + size)));
}

#endif
