/* CRC-32C (Castagnoli) with the instruction that x86-64 and ARMv8 processors have for it. */

#ifndef LOWTIDE_CRC32C_H
#define LOWTIDE_CRC32C_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns whether this processor has the instructions. Without them add_crc32c() must not be called. */
bool has_crc32c(void);

/* Returns the checksum of some bytes, which have the checksum `crc` (0: no bytes), followed by `bytes`. */
uint32_t add_crc32c(uint32_t crc, const uint8_t *bytes, size_t size);

#endif
