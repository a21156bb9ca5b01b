/* CRC32C (Castagnoli): the one checksum of the store. */
#ifndef CFS_CRC32C_H
#define CFS_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Checksum of `size` bytes, going on from `seed`: the checksum of what came before, 0 for nothing.
   Uses the processor's instruction where there is one. */
uint32_t cfs_crc32c(uint32_t seed, const void *data, size_t size);

/* The same by tables alone; for processors without the instruction, and for the test that compares. */
uint32_t cfs_crc32c_tables(uint32_t seed, const void *data, size_t size);

/* 1 if cfs_crc32c uses the processor's instruction. */
int cfs_crc32c_hardware(void);

#endif
