/* Compares protocol/native/crc32c.c with a bit by bit form, without Python: `make sanitize`.

   fuzz_crc32c SECONDS SEED. Inputs are allocated at their exact size, begin at any address, and are cut in two. */

#include "crc32c.h"
#include "fuzzing.h"

#define SIZE_MAX_BYTES 20000

static uint32_t bit_by_bit(uint32_t crc, const uint8_t *bytes, size_t size)
{
    crc = ~crc;
    while (size-- > 0) {
        crc ^= *bytes++;
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
        }
    }
    return ~crc;
}

int main(int count, char **arguments)
{
    struct session session = begin(count, arguments);
    unsigned long runs = 0;
    if (!has_crc32c()) {
        printf("this processor has no instruction for CRC-32C\n");
        return 0;
    }
    for (; time(NULL) < session.end; runs++) {
        size_t skipped = next() % 8, size = next() % (next() % 4 ? 400 : SIZE_MAX_BYTES), cut = next() % (size + 1);
        uint8_t *start = room((int64_t)(skipped + size)), *bytes = start + skipped;
        for (size_t at = 0; at < size; at++) {
            bytes[at] = (uint8_t)next();
        }
        uint32_t before = (uint32_t)next(), expected = bit_by_bit(before, bytes, size);
        CHECK(add_crc32c(before, bytes, size) == expected);
        CHECK(add_crc32c(add_crc32c(before, bytes, cut), bytes + cut, size - cut) == expected);
        free(start);
    }
    return finish(&session, runs);
}
