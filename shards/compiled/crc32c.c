/* CRC-32C by the instruction of the processor, which is chosen when the module is imported, or by tables. */
#include "crc32c.h"

#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define CRC_TARGET __attribute__((target("sse4.2")))
#define CRC_U64(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#define CRC_U8(crc, byte) _mm_crc32_u8((crc), (byte))
#define CRC_INSTRUCTION "sse4.2"
#define CRC_IS_THERE() __builtin_cpu_supports("sse4.2")
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define CRC_TARGET
#define CRC_U64(crc, word) __crc32cd((crc), (word))
#define CRC_U8(crc, byte) __crc32cb((crc), (byte))
#define CRC_INSTRUCTION "armv8"
#define CRC_IS_THERE() 1
#endif

#define CRC_POLYNOMIAL 0x82F63B78u /* Castagnoli, reflected */

static inline uint64_t
crc_word(const unsigned char *data)
{
    uint64_t word;
    memcpy(&word, data, sizeof word);
    return word;
}

static uint32_t
crc_by_tables(const Crc *self, uint32_t crc, const unsigned char *data, size_t size)
{
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word = crc_word(data) ^ crc;
        crc = 0;
        for (int byte = 0; byte < 8; byte++) {
            crc ^= self->table[7 - byte][word >> 8 * byte & 0xFF];
        }
    }
    for (; size; data++, size--) {
        crc = crc >> 8 ^ self->table[0][(crc ^ *data) & 0xFF];
    }
    return crc;
}

#ifdef CRC_TARGET

static uint32_t
crc_skip_block(const Crc *self, uint32_t crc)
{
    uint32_t result = 0;
    for (int bit = 0; bit < 32; bit++) {
        result ^= self->skip_block[bit] & -(crc >> bit & 1);
    }
    return result;
}

CRC_TARGET static uint32_t
crc_by_instruction(const Crc *self, uint32_t crc, const unsigned char *data, size_t size)
{
    /* The instruction takes three cycles, and a new one can begin in each: three streams keep the processor busy. They
     * are joined by what zero bytes in place of the later streams would make of the earlier ones. */
    for (; size >= 3 * CRC_BLOCK; data += 3 * CRC_BLOCK, size -= 3 * CRC_BLOCK) {
        uint32_t second = 0, third = 0;
        for (size_t at = 0; at < CRC_BLOCK; at += 8) {
            crc = CRC_U64(crc, crc_word(data + at));
            second = CRC_U64(second, crc_word(data + at + CRC_BLOCK));
            third = CRC_U64(third, crc_word(data + at + 2 * CRC_BLOCK));
        }
        crc = crc_skip_block(self, crc_skip_block(self, crc) ^ second) ^ third;
    }
    for (; size >= 8; data += 8, size -= 8) {
        crc = CRC_U64(crc, crc_word(data));
    }
    for (; size; data++, size--) {
        crc = CRC_U8(crc, *data);
    }
    return crc;
}

#endif

void
crc_prepare(Crc *self, int may_use_instruction)
{
    static const unsigned char zeros[CRC_BLOCK];
    for (unsigned byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (CRC_POLYNOMIAL & -(crc & 1));
        }
        self->table[0][byte] = crc;
    }
    for (int zero = 1; zero < 8; zero++) {
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = self->table[zero - 1][byte];
            self->table[zero][byte] = before >> 8 ^ self->table[0][before & 0xFF];
        }
    }
    for (int bit = 0; bit < 32; bit++) {
        self->skip_block[bit] = crc_by_tables(self, (uint32_t)1 << bit, zeros, CRC_BLOCK);
    }
    self->update = crc_by_tables;
    self->kind = "tables";
#ifdef CRC_TARGET
    if (may_use_instruction && CRC_IS_THERE()) {
        self->update = crc_by_instruction;
        self->kind = CRC_INSTRUCTION;
    }
#else
    (void)may_use_instruction;
#endif
}
