#include "walk.h"

#include <stdbool.h>
#include <string.h>

#include "bytes.h"
#include "crc32c.h"

enum { VERSION = 1, COMMIT = 1, STAGE = 2, PAD = 3, FIRST_OF_SESSION = 1, KNOWN_FLAGS = 1 | 2 };

/* Whether the record fits, its commit's bytes aside. */
static bool fits(const uint8_t *record, const cfs_walk_state *state)
{
    uint8_t kind = record[5];
    uint16_t flags = cfs_get16(record + 6);
    uint64_t id = cfs_get64(record + 16);
    return memcmp(record, "PTR3", 4) == 0 && record[4] == VERSION && kind >= COMMIT && kind <= PAD &&
           cfs_get64(record + 8) == state->offset && id == state->commit_id + (kind == COMMIT) &&
           cfs_get64(record + 24) == state->store &&
           (cfs_get64(record + 32) == state->session || (flags & FIRST_OF_SESSION)) &&
           cfs_get32(record + 120) == state->chain &&
           cfs_get32(record + 124) == cfs_crc32c(0, record, 124);
}

void cfs_walk(const uint8_t *window, size_t size, uint64_t base, cfs_walk_state *state)
{
    state->records = state->commits = 0;
    state->unknown_flags = 0;
    for (;;) {
        state->need = CFS_RECORD;
        uint64_t skip = state->offset - base;
        if (skip > size || size - skip < CFS_RECORD)
            return;
        const uint8_t *record = window + skip;
        if (!fits(record, state)) {
            state->need = 0;
            return;
        }
        uint32_t length = cfs_get32(record + 40);
        if (record[5] == COMMIT) {
            if (size - skip - CFS_RECORD < length) {
                state->need = CFS_RECORD + (uint64_t)length;
                return;
            }
            if (cfs_get32(record + 44) != cfs_crc32c(0, record + CFS_RECORD, length)) {
                state->need = 0;
                return;
            }
            state->commit_id++;
            state->commit_offset = state->offset;
            state->commits++;
        }
        state->records++;
        state->unknown_flags |= cfs_get16(record + 6) & 0xff & ~(uint32_t)KNOWN_FLAGS;
        state->session = cfs_get64(record + 32);
        state->chain = cfs_get32(record + 124);
        /* Offsets lie below 2^63 and a length below 2^32: no overflow. */
        state->offset = (state->offset + CFS_RECORD + length + 7) & ~UINT64_C(7);
    }
}
