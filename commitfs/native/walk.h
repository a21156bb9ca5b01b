/* The walk along the records of the log (docs/format.md). */
#ifndef CFS_WALK_H
#define CFS_WALK_H

#include <stddef.h>
#include <stdint.h>

#define CFS_RECORD 128

/* Where a walk stands, and what the last call found. */
typedef struct {
    /* In and out: what the next record must fit to. */
    uint64_t offset;        /* where it must lie */
    uint64_t store;         /* the store's number; never changes */
    uint64_t session;       /* of the record before */
    uint64_t commit_id;     /* newest commit before, 0: none */
    uint64_t commit_offset; /* its record, 0: none */
    uint32_t chain;         /* checksum field of the record before, 0: none */
    /* Out: */
    uint32_t unknown_flags; /* those of the low byte that this version does not know, of all records passed */
    uint64_t need;          /* bytes wanted from `offset` on to decide; 0: the record there does not fit, the walk ends */
    uint64_t records;       /* passed by this call, of any kind */
    uint64_t commits;       /* of these, commits */
} cfs_walk_state;

/* Passes every record that lies whole in the window: `size` bytes of the log from `base` <= state->offset on. */
void cfs_walk(const uint8_t *window, size_t size, uint64_t base, cfs_walk_state *state);

#endif
