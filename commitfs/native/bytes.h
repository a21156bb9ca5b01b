/* Little-endian loads and stores at any alignment; keys are big endian. */
#ifndef CFS_BYTES_H
#define CFS_BYTES_H

#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define CFS_LE16(x) (x)
#define CFS_LE32(x) (x)
#define CFS_LE64(x) (x)
#else
#define CFS_LE16(x) __builtin_bswap16(x)
#define CFS_LE32(x) __builtin_bswap32(x)
#define CFS_LE64(x) __builtin_bswap64(x)
#endif

static inline uint16_t cfs_get16(const uint8_t *at)
{
    uint16_t x;
    memcpy(&x, at, sizeof x);
    return CFS_LE16(x);
}

static inline uint32_t cfs_get32(const uint8_t *at)
{
    uint32_t x;
    memcpy(&x, at, sizeof x);
    return CFS_LE32(x);
}

static inline uint64_t cfs_get64(const uint8_t *at)
{
    uint64_t x;
    memcpy(&x, at, sizeof x);
    return CFS_LE64(x);
}

static inline void cfs_put16(uint8_t *at, uint16_t x)
{
    x = CFS_LE16(x);
    memcpy(at, &x, sizeof x);
}

static inline void cfs_put32(uint8_t *at, uint32_t x)
{
    x = CFS_LE32(x);
    memcpy(at, &x, sizeof x);
}

static inline void cfs_put64(uint8_t *at, uint64_t x)
{
    x = CFS_LE64(x);
    memcpy(at, &x, sizeof x);
}

static inline void cfs_put64_big(uint8_t *at, uint64_t x)
{
    cfs_put64(at, __builtin_bswap64(x));
}

#endif
