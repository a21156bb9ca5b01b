/* The copy-on-write B+tree.

   Clean nodes are in the cache and never change.  The first change below a clean node copies it to a slot of the
   tree, and the pointer in its parent (by then itself a copy) becomes CFS_DIRTY + slot.  Building stores the
   copies, children first, and hands them to the cache.

   Every operation first gets all nodes it needs in hand.  If one is not in the cache it returns -EAGAIN with
   `need` set and has changed nothing: the caller loads it and calls again.  Then it gets all memory it needs
   (-ENOMEM: nothing has changed but copies made, which mean the same).  Then it cannot fail any more. */
#ifndef CFS_TREE_H
#define CFS_TREE_H

#include "cache.h"

enum {
    CFS_SPLIT = 1024 - CFS_HEADER, /* a body longer than this is split */
    CFS_LOW = 256,                 /* one shorter than this is merged with a neighbour that is at hand ... */
    CFS_MERGED = 768,              /* ... if the two are no longer than this, so that it is not split again at once */
    CFS_ENTRY_MAX = CFS_LENGTHS + CFS_KEY_MAX + CFS_VALUE_MAX,
    CFS_BRANCH_MAX = CFS_LENGTHS + CFS_KEY_MAX + CFS_POINTER,
    CFS_DEPTH_MAX = CFS_LEVEL_MAX + 1,
};

typedef struct {
    cfs_pointer root;   /* offset 0: the tree is empty */
    cfs_pointer need;   /* what -EAGAIN asks for */
    int changed;        /* root is not the one of the last build */
    uint64_t edits;     /* puts and deletes done */
    uint64_t estimate;  /* no build now would store more bytes than this, each node rounded up to 8 */
    uint8_t out[CFS_ENCODED_MAX];
    cfs_nodes *nodes;
    /* Dirty nodes by slot; unused slots hold NULL and are listed in `vacant`. */
    cfs_node **dirty;
    uint32_t *vacant;
    uint32_t slots, used, vacancies;
    /* The build under way: slots in the order of storing, and where each went. */
    uint32_t *order;
    cfs_pointer *built;
    uint32_t ordered, stored;
    LZ4_stream_t *lz4;
    /* What the last run stored. */
    uint8_t *run;
    size_t run_room;
} cfs_tree;

/* NULL without memory, or if the offset is none of a log. */
cfs_tree *cfs_tree_new(cfs_nodes *nodes, uint64_t offset, uint32_t length, uint32_t level, uint32_t crc);
void cfs_tree_free(cfs_tree *t);

/* Copies the value to t->out and returns its length; -ENOENT, -EAGAIN. */
int cfs_tree_get(cfs_tree *t, const uint8_t *key, size_t key_size);

/* 0, -EAGAIN, -ENOMEM, -EINVAL (sizes), -EOVERFLOW (more than CFS_LEVEL_MAX levels). */
int cfs_tree_put(cfs_tree *t, const uint8_t *key, size_t key_size, const uint8_t *value, size_t value_size);

/* Whether all is at hand that changes of these keys need: 0, -EAGAIN.  `keys` holds them one behind the other, each
   behind its length as 2 bytes, little endian; -EINVAL where it does not.  CFS_TOUCH_MAX of them at most: all their nodes
   have to fit into the cache at once. */
int cfs_tree_touch(cfs_tree *t, const uint8_t *keys, size_t size);

/* 0, -ENOENT, -EAGAIN, -ENOMEM. */
int cfs_tree_delete(cfs_tree *t, const uint8_t *key, size_t key_size);

/* Several of them, CFS_TOUCH_MAX at most: one behind the other in `edits` as entries are in a node, a delete with the
   value's length CFS_NO_VALUE.  Deleting what is not there is no error.  -EAGAIN and -EINVAL (also where the lengths do
   not add up): nothing has changed; -ENOMEM, -EOVERFLOW: some may have been done. */
#define CFS_NO_VALUE UINT16_MAX
int cfs_tree_apply(cfs_tree *t, const uint8_t *edits, size_t size);

/* Copies entries of one leaf to t->out, in the form they are stored in, and returns their bytes: those not below
   `key` (with `beyond`: above it), or those below it; of the first, or last, leaf that has any.  0: there are none, or
   none below `high`, or at or above `low`, which are NULL where all are wanted; entries beyond them may be among those
   copied.  -EAGAIN. */
int cfs_tree_forward(cfs_tree *t, const uint8_t *key, size_t key_size, int beyond, const uint8_t *high,
                     size_t high_size);
int cfs_tree_backward(cfs_tree *t, const uint8_t *key, size_t key_size, const uint8_t *low, size_t low_size);

/* Build: begin, then store with the offset given to the bytes of the call before (0 at first) until it returns 0.
   Each call leaves the bytes of the next node in t->out and returns their length.  After 0 the tree is clean and `root`
   is its new root.  Begun again before that, a build starts from the beginning.  0, -ENOMEM; -EINVAL for a bad offset. */
int cfs_tree_build_begin(cfs_tree *t);
int cfs_tree_build_store(cfs_tree *t, uint64_t offset);

/* Or, when all nodes go one behind the other at `offset`: begin, run, finish.  Run leaves them at t->run, behind `ahead`
   bytes that it does not touch, and returns their bytes.  Not finished, the tree stays as it was.  -ENOMEM, -EOVERFLOW. */
int64_t cfs_tree_build_run(cfs_tree *t, uint64_t offset, size_t ahead);
void cfs_tree_build_finish(cfs_tree *t);

/* Between the files of the tree.  The lock of the cache is held. */

/* The way from the root down to a leaf. */
typedef struct {
    cfs_node *node[CFS_DEPTH_MAX];
    unsigned index[CFS_DEPTH_MAX]; /* of the child that was taken; at the leaf, of the entry */
    uint32_t slot[CFS_DEPTH_MAX];  /* CFS_CLEAN or where the dirty node is */
    unsigned depth;
    bool exact;                    /* the leaf's entry is the key */
} cfs_path;

#define CFS_CLEAN UINT32_MAX

/* Has so many bytes at t->run: 0 or -ENOMEM. */
int cfs_tree_run_room(cfs_tree *t, size_t room);

/* The node at `p` if it is at hand. */
cfs_node *cfs_tree_node(cfs_tree *t, const cfs_pointer *p);
/* The same; without it, sets `need` and returns -EAGAIN. */
int cfs_tree_want(cfs_tree *t, const cfs_pointer *p, cfs_node **n);

/* Way to the leaf where `key` is or would be.  The tree must not be empty. */
int cfs_tree_descend(cfs_tree *t, const uint8_t *key, size_t key_size, cfs_path *path);

/* Makes every node on the way dirty: 0 or -ENOMEM. */
int cfs_tree_own(cfs_tree *t, cfs_path *path);
/* Makes the child dirty that `path` took at `depth`, its parent being dirty. */
int cfs_tree_own_at(cfs_tree *t, cfs_path *path, unsigned depth);
/* Put and delete with the lock held, in a tree that is not empty. */
int cfs_tree_put_entry(cfs_tree *t, const uint8_t *key, size_t key_size, const uint8_t *value, size_t value_size);
int cfs_tree_delete_entry(cfs_tree *t, const uint8_t *key, size_t key_size);

/* Makes room for an insertion: 0 or -ENOMEM. */
int cfs_tree_grow(cfs_tree *t, cfs_path *path, unsigned depth, unsigned slots, unsigned room);

/* Gives a node a slot.  cfs_tree_reserve_slots has made sure there is one. */
uint32_t cfs_tree_adopt(cfs_tree *t, cfs_node *n);
int cfs_tree_reserve_slots(cfs_tree *t, uint32_t count);
void cfs_tree_discard(cfs_tree *t, uint32_t slot);

/* Kept right by whoever changes the length of a dirty node. */
static inline uint64_t cfs_stored_bound(const cfs_node *n)
{
    return (CFS_HEADER + (uint64_t)n->length + 7) & ~UINT64_C(7);
}

static inline cfs_pointer cfs_dirty_pointer(uint32_t slot, unsigned level)
{
    return (cfs_pointer){CFS_DIRTY + slot, 0, level, 0};
}

#endif
