/* Nodes of the tree: as stored (docs/format.md, "Nodes") and as held in memory. */
#ifndef CFS_NODE_H
#define CFS_NODE_H

#include <lz4.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bytes.h"

enum {
    CFS_HEADER = 8,         /* of a stored node */
    CFS_BODY_MAX = 2040,    /* entries of a node, uncompressed */
    CFS_STORED_MAX = CFS_HEADER + CFS_BODY_MAX,
    CFS_LENGTHS = 4,        /* before each entry */
    CFS_KEY_MAX = 264,
    CFS_VALUE_MAX = 512,
    CFS_POINTER = 16,       /* the value of an internal node's entry */
    CFS_LEVEL_MAX = 15,
    CFS_RAW = 0,
    CFS_LZ4 = 1,
    CFS_ENCODED_MAX = CFS_HEADER + LZ4_COMPRESSBOUND(CFS_BODY_MAX), /* before it is known whether LZ4 pays */
};

/* Where a node lies: an offset of the log, or CFS_DIRTY + slot for a node not built yet. */
typedef struct {
    uint64_t offset;
    uint32_t length, level, crc;
} cfs_pointer;

#define CFS_DIRTY (UINT64_C(1) << 62)

static inline bool cfs_is_dirty(const cfs_pointer *p)
{
    return p->offset >= CFS_DIRTY;
}

static inline bool cfs_same_pointer(const cfs_pointer *a, const cfs_pointer *b)
{
    return a->offset == b->offset && a->length == b->length && a->level == b->level && a->crc == b->crc;
}

void cfs_get_pointer(cfs_pointer *p, const uint8_t *at);
void cfs_put_pointer(uint8_t *at, const cfs_pointer *p);

/* A node in memory: the entries as they are stored, and where each begins. */
typedef struct cfs_node {
    cfs_pointer at;                   /* where it is stored (N7); says nothing of a dirty node */
    struct cfs_node *newer, *older;   /* order of last use in the cache */
    struct cfs_node *chain;           /* same bucket of the cache */
    uint16_t slots, room;             /* size of `start`; size of the body */
    uint16_t count, length;           /* entries; bytes they take of the body */
    uint16_t newest;                  /* index of the entry inserted last; a hint for splits, UINT16_MAX: unknown */
    uint8_t level;                    /* 0: leaf */
    uint16_t start[];                 /* `slots` of them, then the body */
} cfs_node;

static inline uint8_t *cfs_body(const cfs_node *n)
{
    return (uint8_t *)(uintptr_t)(n->start + n->slots);
}

static inline size_t cfs_node_bytes(const cfs_node *n)
{
    return sizeof *n + n->slots * sizeof n->start[0] + n->room;
}

/* One entry of a node, pointing into it. */
typedef struct {
    const uint8_t *key, *value;
    uint16_t key_size, value_size;
} cfs_entry;

static inline cfs_entry cfs_entry_of(const cfs_node *n, unsigned i)
{
    const uint8_t *at = cfs_body(n) + n->start[i];
    uint16_t key_size = cfs_get16(at);
    return (cfs_entry){at + CFS_LENGTHS, at + CFS_LENGTHS + key_size, key_size, cfs_get16(at + 2)};
}

static inline uint16_t cfs_entry_bytes(size_t key_size, size_t value_size)
{
    return (uint16_t)(CFS_LENGTHS + key_size + value_size);
}

/* < 0, 0, > 0 as memcmp; a key that begins with another is the greater. */
static inline int cfs_compare(const uint8_t *a, size_t a_size, const uint8_t *b, size_t b_size)
{
    int order = memcmp(a, b, a_size < b_size ? a_size : b_size);
    return order ? order : (a_size > b_size) - (a_size < b_size);
}

cfs_node *cfs_node_new(uint8_t level, unsigned slots, unsigned room);

/* A copy with room for more; NULL without memory. */
cfs_node *cfs_node_copy(const cfs_node *n, unsigned more_slots, unsigned more_room);

/* Index of the first entry whose key is not below `key`, *exact if it is that key. */
unsigned cfs_node_find(const cfs_node *n, const uint8_t *key, size_t size, bool *exact);

/* Index of the entry of an internal node under which `key` belongs.  The first stands for all that is lower. */
unsigned cfs_node_child(const cfs_node *n, const uint8_t *key, size_t size);

void cfs_child_pointer(cfs_pointer *p, const cfs_node *n, unsigned i);

/* These need the room to be there.  Only the first sets `newest`. */
void cfs_node_insert(cfs_node *n, unsigned i, const uint8_t *key, size_t key_size, const uint8_t *value,
                     size_t value_size);
void cfs_node_remove(cfs_node *n, unsigned i);
void cfs_node_replace(cfs_node *n, unsigned i, const uint8_t *value, size_t value_size);
void cfs_node_append(cfs_node *n, const cfs_node *from, unsigned first, unsigned last);
void cfs_node_truncate(cfs_node *n, unsigned count);
/* Makes the first key of an internal node empty, as N5 wants it. */
void cfs_node_blank_first(cfs_node *n);

/* Stored form of `length` bytes of entries into out[CFS_ENCODED_MAX]: its length, at most CFS_STORED_MAX. */
size_t cfs_node_encode(unsigned level, const uint8_t *body, size_t length, unsigned count, uint8_t *out,
                       LZ4_stream_t *lz4);

/* Decodes and checks everything (N1 to N7).  0, -EBADMSG or -ENOMEM.  Safe on any input. */
int cfs_node_decode(const uint8_t *stored, size_t size, uint32_t level, cfs_node **out);

#endif
