/* CRC-32C, for the loops: they check tens to hundreds of bytes at a time, where a call of another extension module
 * takes longer than the sum itself.
 */
#ifndef SHARDS_COMPILED_CRC32C_H
#define SHARDS_COMPILED_CRC32C_H

#include <stddef.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "all formats are little-endian, and are read and written here as the processor has them; use the loops in Python"
#endif

#define CRC_BLOCK 4096 /* bytes of each of the three streams of a long input */

typedef struct Crc Crc;
struct Crc {
    /* Takes and returns the sum inverted, as the instructions have it. */
    uint32_t (*update)(const Crc *, uint32_t crc, const unsigned char *data, size_t size);
    const char *kind;
    uint32_t skip_block[32]; /* what CRC_BLOCK zero bytes make of a sum that has this bit alone */
    uint32_t table[8][256];  /* [n][byte]: what the byte and n zero bytes after it make of 0 */
};

/* Fills the tables, and takes the instruction of the processor if there is one and it may. */
void crc_prepare(Crc *self, int may_use_instruction);

/* The sum of the data, continued from that of what is before it: `crc32c(data, crc)` of the Python package. */
static inline uint32_t
crc32c(const Crc *self, uint32_t crc, const unsigned char *data, size_t size)
{
    return ~self->update(self, ~crc, data, size);
}

#endif
