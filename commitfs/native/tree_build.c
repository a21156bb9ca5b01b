/* Building: storing the dirty nodes, children first. */
#include <errno.h>
#include <stdlib.h>

#include "crc32c.h"
#include "tree.h"

/* Bytes of a run's room that are kept for the next. */
#define RUN_KEPT (128u << 10)

/* Lists the dirty nodes below `slot`, and it behind them. */
static void list_below(cfs_tree *t, uint32_t slot)
{
    const cfs_node *n = t->dirty[slot];
    for (unsigned i = 0; n->level > 0 && i < n->count; i++) {
        cfs_pointer p;
        cfs_child_pointer(&p, n, i);
        if (cfs_is_dirty(&p))
            list_below(t, (uint32_t)(p.offset - CFS_DIRTY));
    }
    t->order[t->ordered++] = slot;
}

/* Puts the places of the children stored meanwhile into the entries of an internal node. */
static void set_places(const cfs_tree *t, const cfs_node *n, uint8_t *body)
{
    for (unsigned i = 0; n->level > 0 && i < n->count; i++) {
        cfs_pointer p;
        uint8_t *value = body + n->start[i] + CFS_LENGTHS + cfs_entry_of(n, i).key_size;
        cfs_get_pointer(&p, value);
        if (cfs_is_dirty(&p))
            cfs_put_pointer(value, &t->built[p.offset - CFS_DIRTY]);
    }
}

int cfs_tree_build_begin(cfs_tree *t)
{
    t->ordered = t->stored = 0;
    if (t->run_room > RUN_KEPT && t->estimate < RUN_KEPT / 2) {
        free(t->run);
        t->run = NULL;
        t->run_room = 0;
    }
    if (!cfs_is_dirty(&t->root))
        return 0;
    uint32_t *order = realloc(t->order, t->used * sizeof *order);
    if (!order)
        return -ENOMEM;
    t->order = order;
    cfs_pointer *built = realloc(t->built, t->used * sizeof *built);
    if (!built)
        return -ENOMEM;
    t->built = built;
    if (!t->lz4) {
        t->lz4 = LZ4_createStream();
        if (!t->lz4)
            return -ENOMEM;
    }
    list_below(t, (uint32_t)(t->root.offset - CFS_DIRTY));
    return 0;
}

/* All are stored: the places become final, the nodes clean. */
static void finish(cfs_tree *t)
{
    for (uint32_t k = 0; k < t->ordered; k++) {
        cfs_node *n = t->dirty[t->order[k]];
        set_places(t, n, cfs_body(n));
        n->at = t->built[t->order[k]];
        cfs_node *trimmed = cfs_node_copy(n, 0, 0);
        if (trimmed) { /* without memory the larger one does as well */
            trimmed->at = n->at;
            t->dirty[t->order[k]] = trimmed;
            free(n);
        }
    }
    if (t->ordered)
        t->root = t->built[t->order[t->ordered - 1]];
    pthread_mutex_lock(&t->nodes->lock);
    for (uint32_t k = 0; k < t->ordered; k++)
        cfs_nodes_put(t->nodes, t->dirty[t->order[k]]);
    pthread_mutex_unlock(&t->nodes->lock);
    t->used = t->vacancies = t->ordered = 0;
    t->estimate = 0;
    t->changed = 0;
}

/* Stores the node in `slot`, whose children are stored, at `out`, with room for CFS_ENCODED_MAX. */
static size_t store(cfs_tree *t, uint32_t slot, uint64_t offset, uint8_t *out)
{
    const cfs_node *n = t->dirty[slot];
    uint8_t body[CFS_BODY_MAX];
    memcpy(body, cfs_body(n), n->length);
    set_places(t, n, body);
    size_t size = cfs_node_encode(n->level, body, n->length, n->count, out, t->lz4);
    t->built[slot] = (cfs_pointer){offset, (uint32_t)size, n->level, cfs_crc32c(0, out, size)};
    return size;
}

int cfs_tree_run_room(cfs_tree *t, size_t room)
{
    if (t->run_room >= room)
        return 0;
    uint8_t *run = realloc(t->run, room);
    if (!run)
        return -ENOMEM;
    t->run = run;
    t->run_room = room;
    return 0;
}

int64_t cfs_tree_build_run(cfs_tree *t, uint64_t offset, size_t ahead)
{
    /* None is longer than it was before LZ4, when it is done. */
    if (cfs_tree_run_room(t, ahead + t->estimate + CFS_ENCODED_MAX))
        return -ENOMEM;
    size_t at = 0;
    for (uint32_t k = 0; k < t->ordered; k++) {
        if (t->run_room - ahead - at < CFS_ENCODED_MAX)
            return -EOVERFLOW; /* the estimate was none */
        at += store(t, t->order[k], offset + at, t->run + ahead + at);
    }
    return (int64_t)at;
}

void cfs_tree_build_finish(cfs_tree *t)
{
    finish(t);
}

int cfs_tree_build_store(cfs_tree *t, uint64_t offset)
{
    if (t->stored > 0) {
        if (offset == 0 || offset >= CFS_DIRTY)
            return -EINVAL;
        t->built[t->order[t->stored - 1]].offset = offset;
    }
    if (t->stored == t->ordered) {
        finish(t);
        return 0;
    }
    uint32_t slot = t->order[t->stored++];
    return (int)store(t, slot, 0, t->out);
}
