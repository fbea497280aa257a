/* CRC-32C by the processor's instruction: see crc32c.h.

   The instruction takes 8 bytes. One can begin every cycle, but its result comes three cycles later. So three adjacent
   runs of bytes are summed at the same time, and then joined. To join a run with the next one, its checksum is changed
   to that of the run and as many zeros: it is multiplied by a power of x, modulo the polynomial. A carryless
   multiplication computes the product, and the CRC instruction its remainder.

   Numbers are reflected: bit 31 is the coefficient of x^0. The carryless product of two such numbers is their product
   times x, and the CRC instruction multiplies by x^32. So the power for n zero bytes is 8 * n - 33. */

#include "crc32c.h"

#include <string.h>

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

#ifdef __clang__ /* counts the instruction apart from the others of SSE 4.2 */
#define QUICK __attribute__((target("sse4.2,crc32,pclmul")))
#else
#define QUICK __attribute__((target("sse4.2,pclmul")))
#endif

bool has_crc32c(void)
{
    const unsigned wanted = bit_SSE4_2 | bit_PCLMUL;
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & wanted) == wanted;
}

static inline QUICK uint32_t add_byte(uint32_t crc, uint8_t byte)
{
    return _mm_crc32_u8(crc, byte);
}

static inline QUICK uint32_t add_word(uint32_t crc, uint64_t word)
{
    return (uint32_t)_mm_crc32_u64(crc, word);
}

static inline QUICK uint64_t product(uint32_t left, uint32_t right)
{
    return (uint64_t)_mm_cvtsi128_si64(
        _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)left), _mm_cvtsi32_si128((int)right), 0));
}

#elif defined(__aarch64__) && defined(__linux__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__

#include <arm_acle.h>
#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

#define QUICK __attribute__((target("+crc+crypto")))

bool has_crc32c(void)
{
    const unsigned long wanted = HWCAP_CRC32 | HWCAP_PMULL;
    return (getauxval(AT_HWCAP) & wanted) == wanted;
}

static inline QUICK uint32_t add_byte(uint32_t crc, uint8_t byte)
{
    return __crc32cb(crc, byte);
}

static inline QUICK uint32_t add_word(uint32_t crc, uint64_t word)
{
    return __crc32cd(crc, word);
}

static inline QUICK uint64_t product(uint32_t left, uint32_t right)
{
    return (uint64_t)vmull_p64(left, right);
}

#else
#define NO_INSTRUCTIONS
#endif

#ifdef NO_INSTRUCTIONS

bool has_crc32c(void)
{
    return false;
}

uint32_t add_crc32c(uint32_t crc, const uint8_t *bytes, size_t size)
{
    (void)bytes;
    (void)size;
    return crc;
}

#else

/* Bytes of a run, a multiple of 8, and the powers of x for the zeros of one run and of two. */
struct run {
    size_t bytes;
    uint32_t one, two;
};

static const struct run RUNS[] = {
    {.bytes = 1024, .one = 0x170076fa, .two = 0xa51b6135},
    {.bytes = 128, .one = 0x0d3b6092, .two = 0xb9e02b86},
};

static inline uint64_t word_at(const uint8_t *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

QUICK uint32_t add_crc32c(uint32_t crc, const uint8_t *bytes, size_t size)
{
    const uint8_t *end = bytes + size;
    crc = ~crc;
    for (const struct run *run = RUNS; run < RUNS + sizeof RUNS / sizeof *RUNS; run++) {
        while ((size_t)(end - bytes) >= 3 * run->bytes) {
            const size_t length = run->bytes;
            uint32_t first = crc, second = 0, third = 0;
            for (const uint8_t *stop = bytes + length; bytes < stop; bytes += 8) {
                first = add_word(first, word_at(bytes));
                second = add_word(second, word_at(bytes + length));
                third = add_word(third, word_at(bytes + 2 * length));
            }
            crc = third ^ add_word(0, product(first, run->two) ^ product(second, run->one));
            bytes += 2 * length;
        }
    }
    for (; end - bytes >= 8; bytes += 8) {
        crc = add_word(crc, word_at(bytes));
    }
    for (; bytes < end; bytes++) {
        crc = add_byte(crc, *bytes);
    }
    return ~crc;
}

#endif
