/* Clean nodes by their offset in the log, the least recently used going first.

   Every function but new and free takes the lock itself or, where it says so, wants it held.  So several trees over
   one cache may be used from several threads; one tree, from one at a time. */
#ifndef CFS_CACHE_H
#define CFS_CACHE_H

#include <pthread.h>

#include "node.h"

/* An operation on a tree holds at most 3 nodes a level in hand, or the ways to CFS_TOUCH_MAX keys.  The cache keeps this
   many however large they are, so that it cannot lose one of them for the sake of another for ever. */
#define CFS_TOUCH_MAX 8
#define CFS_NODES_MIN (CFS_TOUCH_MAX * (CFS_LEVEL_MAX + 1))

typedef struct {
    pthread_mutex_t lock;
    cfs_node **buckets;
    size_t mask;
    cfs_node *newest, *oldest;
    size_t limit;
    size_t bytes, count; /* of the nodes held */
} cfs_nodes;

cfs_nodes *cfs_nodes_new(size_t limit);
void cfs_nodes_free(cfs_nodes *nodes);

/* Checks what was read at a pointer, decodes it, and keeps it: 0, -EBADMSG, -ENOMEM. */
int cfs_nodes_load(cfs_nodes *nodes, uint64_t offset, uint32_t length, uint32_t level, uint32_t crc,
                   const uint8_t *stored, size_t size);

/* Entries of a node into out[CFS_BODY_MAX]: their bytes; -EAGAIN if it has to be loaded first. */
int cfs_nodes_entries(cfs_nodes *nodes, uint64_t offset, uint32_t length, uint32_t level, uint32_t crc, uint8_t *out);

/* Forgets all nodes at `offset` and above. */
void cfs_nodes_forget(cfs_nodes *nodes, uint64_t offset);

/* Lock held: the node at a pointer, or NULL; makes it the newest. */
cfs_node *cfs_nodes_find(cfs_nodes *nodes, const cfs_pointer *p);

/* Lock held: takes over `n`, whose `at` is set.  `n` lives until the next put or load at least. */
void cfs_nodes_put(cfs_nodes *nodes, cfs_node *n);

#endif
