/* CRC32C.

   The instruction takes 8 bytes and answers three cycles later, but a new one can start every cycle: one
   stream leaves two thirds of the unit idle.  So a long buffer is cut into blocks of three equal lanes that are
   worked off side by side.  A lane's checksum is then moved over the bytes behind it: a linear map of 32
   bits, kept as four tables of 256, one for each length of lane. */

#include "crc32c.h"

#include "bytes.h"

#define POLYNOMIAL 0x82f63b78u /* reflected */
#define LONG_LANE 2048u
#define SHORT_LANE 256u

static uint32_t table[8][256];
static uint32_t over_long[4][256], over_short[4][256];
static int hardware;

/* The register after `zeros` more zero bytes. */
static uint32_t over_zeros(uint32_t crc, size_t zeros)
{
    while (zeros--)
        crc = (crc >> 8) ^ table[0][crc & 0xff];
    return crc;
}

/* The map is linear over XOR: 32 single bits make all 1,024 entries. */
static void make_over(uint32_t over[4][256], size_t lane)
{
    for (unsigned part = 0; part < 4; part++) {
        uint32_t of_bit[8];
        for (unsigned bit = 0; bit < 8; bit++)
            of_bit[bit] = over_zeros(UINT32_C(1) << (8 * part + bit), lane);
        for (unsigned byte = 0; byte < 256; byte++) {
            over[part][byte] = 0;
            for (unsigned bit = 0; bit < 8; bit++)
                if (byte >> bit & 1)
                    over[part][byte] ^= of_bit[bit];
        }
    }
}

__attribute__((constructor)) static void make_tables(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? (crc >> 1) ^ POLYNOMIAL : crc >> 1;
        table[0][byte] = crc;
    }
    for (unsigned byte = 0; byte < 256; byte++)
        for (unsigned k = 1; k < 8; k++)
            table[k][byte] = (table[k - 1][byte] >> 8) ^ table[0][table[k - 1][byte] & 0xff];
    make_over(over_long, LONG_LANE);
    make_over(over_short, SHORT_LANE);
#if defined(__x86_64__)
    __builtin_cpu_init();
    hardware = __builtin_cpu_supports("sse4.2") != 0;
#endif
}

uint32_t cfs_crc32c_tables(uint32_t seed, const void *data, size_t size)
{
    const uint8_t *at = data;
    uint32_t crc = ~seed;
    for (; size >= 8; size -= 8, at += 8) {
        uint32_t low = crc ^ cfs_get32(at), high = cfs_get32(at + 4);
        crc = table[7][low & 0xff] ^ table[6][low >> 8 & 0xff] ^ table[5][low >> 16 & 0xff] ^ table[4][low >> 24] ^
              table[3][high & 0xff] ^ table[2][high >> 8 & 0xff] ^ table[1][high >> 16 & 0xff] ^ table[0][high >> 24];
    }
    for (; size; size--, at++)
        crc = (crc >> 8) ^ table[0][(crc ^ *at) & 0xff];
    return ~crc;
}

#if defined(__x86_64__)

static uint32_t move_over(uint32_t over[4][256], uint32_t crc)
{
    return over[0][crc & 0xff] ^ over[1][crc >> 8 & 0xff] ^ over[2][crc >> 16 & 0xff] ^ over[3][crc >> 24];
}

/* One block of three lanes. */
__attribute__((target("sse4.2"))) static uint32_t lanes(uint32_t crc, const uint8_t *at, size_t lane,
                                                        uint32_t over[4][256])
{
    uint64_t a = crc, b = 0, c = 0;
    for (size_t i = 0; i < lane; i += 8) {
        a = __builtin_ia32_crc32di(a, cfs_get64(at + i));
        b = __builtin_ia32_crc32di(b, cfs_get64(at + lane + i));
        c = __builtin_ia32_crc32di(c, cfs_get64(at + 2 * lane + i));
    }
    crc = move_over(over, (uint32_t)a) ^ (uint32_t)b;
    return move_over(over, crc) ^ (uint32_t)c;
}

__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t seed, const uint8_t *at, size_t size)
{
    uint32_t crc = ~seed;
    for (; size >= 3 * LONG_LANE; size -= 3 * LONG_LANE, at += 3 * LONG_LANE)
        crc = lanes(crc, at, LONG_LANE, over_long);
    for (; size >= 3 * SHORT_LANE; size -= 3 * SHORT_LANE, at += 3 * SHORT_LANE)
        crc = lanes(crc, at, SHORT_LANE, over_short);
    uint64_t wide = crc;
    for (; size >= 8; size -= 8, at += 8)
        wide = __builtin_ia32_crc32di(wide, cfs_get64(at));
    crc = (uint32_t)wide;
    for (; size; size--, at++)
        crc = __builtin_ia32_crc32qi(crc, *at);
    return ~crc;
}

#endif

uint32_t cfs_crc32c(uint32_t seed, const void *data, size_t size)
{
#if defined(__x86_64__)
    if (hardware)
        return by_instruction(seed, data, size);
#endif
    return cfs_crc32c_tables(seed, data, size);
}

int cfs_crc32c_hardware(void)
{
    return hardware;
}
