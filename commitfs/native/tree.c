/* Finding the way through the tree, and owning the nodes on it. */
#include "tree.h"

#include <errno.h>
#include <stdlib.h>

/* Room a copy gets beyond what it holds, so that few insertions need another copy. */
#define SPARE_SLOTS 8
#define SPARE_ROOM 320

cfs_tree *cfs_tree_new(cfs_nodes *nodes, uint64_t offset, uint32_t length, uint32_t level, uint32_t crc)
{
    cfs_tree *t = offset < CFS_DIRTY ? calloc(1, sizeof *t) : NULL;
    if (t) {
        t->nodes = nodes;
        t->root = (cfs_pointer){offset, length, level, crc};
    }
    return t;
}

void cfs_tree_free(cfs_tree *t)
{
    if (!t)
        return;
    for (uint32_t slot = 0; slot < t->used; slot++)
        free(t->dirty[slot]);
    free(t->dirty);
    free(t->vacant);
    free(t->order);
    free(t->built);
    LZ4_freeStream(t->lz4);
    free(t->run);
    free(t);
}

cfs_node *cfs_tree_node(cfs_tree *t, const cfs_pointer *p)
{
    return cfs_is_dirty(p) ? t->dirty[p->offset - CFS_DIRTY] : cfs_nodes_find(t->nodes, p);
}

int cfs_tree_want(cfs_tree *t, const cfs_pointer *p, cfs_node **n)
{
    *n = cfs_tree_node(t, p);
    if (*n)
        return 0;
    t->need = *p;
    return -EAGAIN;
}

int cfs_tree_descend(cfs_tree *t, const uint8_t *key, size_t key_size, cfs_path *path)
{
    cfs_pointer p = t->root;
    for (unsigned depth = 0;; depth++) {
        cfs_node *n;
        if (cfs_tree_want(t, &p, &n))
            return -EAGAIN;
        path->node[depth] = n;
        path->slot[depth] = cfs_is_dirty(&p) ? (uint32_t)(p.offset - CFS_DIRTY) : CFS_CLEAN;
        if (n->level == 0) {
            path->index[depth] = cfs_node_find(n, key, key_size, &path->exact);
            path->depth = depth + 1;
            return 0;
        }
        path->index[depth] = cfs_node_child(n, key, key_size);
        cfs_child_pointer(&p, n, path->index[depth]);
    }
}

int cfs_tree_reserve_slots(cfs_tree *t, uint32_t count)
{
    if (t->vacancies + (t->slots - t->used) >= count)
        return 0;
    uint32_t slots = t->slots ? 2 * t->slots : 32;
    while (slots < t->used + count)
        slots *= 2;
    cfs_node **dirty = realloc(t->dirty, slots * sizeof *dirty);
    if (!dirty)
        return -ENOMEM;
    t->dirty = dirty;
    uint32_t *vacant = realloc(t->vacant, slots * sizeof *vacant);
    if (!vacant)
        return -ENOMEM;
    t->vacant = vacant;
    t->slots = slots;
    return 0;
}

uint32_t cfs_tree_adopt(cfs_tree *t, cfs_node *n)
{
    uint32_t slot = t->vacancies ? t->vacant[--t->vacancies] : t->used++;
    t->dirty[slot] = n;
    t->estimate += cfs_stored_bound(n);
    return slot;
}

void cfs_tree_discard(cfs_tree *t, uint32_t slot)
{
    t->estimate -= cfs_stored_bound(t->dirty[slot]);
    free(t->dirty[slot]);
    t->dirty[slot] = NULL;
    t->vacant[t->vacancies++] = slot;
}

int cfs_tree_own_at(cfs_tree *t, cfs_path *path, unsigned depth)
{
    if (path->slot[depth] != CFS_CLEAN)
        return 0;
    if (cfs_tree_reserve_slots(t, 1))
        return -ENOMEM;
    cfs_node *n = cfs_node_copy(path->node[depth], SPARE_SLOTS, SPARE_ROOM);
    if (!n)
        return -ENOMEM;
    uint32_t slot = cfs_tree_adopt(t, n);
    cfs_pointer p = cfs_dirty_pointer(slot, n->level);
    if (depth == 0)
        t->root = p;
    else
        cfs_put_pointer((uint8_t *)(uintptr_t)cfs_entry_of(path->node[depth - 1], path->index[depth - 1]).value, &p);
    t->changed = 1;
    path->node[depth] = n;
    path->slot[depth] = slot;
    return 0;
}

int cfs_tree_own(cfs_tree *t, cfs_path *path)
{
    for (unsigned depth = 0; depth < path->depth; depth++)
        if (cfs_tree_own_at(t, path, depth))
            return -ENOMEM;
    return 0;
}

int cfs_tree_grow(cfs_tree *t, cfs_path *path, unsigned depth, unsigned slots, unsigned room)
{
    cfs_node *n = path->node[depth];
    if (n->slots - n->count >= (int)slots && n->room - n->length >= (int)room)
        return 0;
    cfs_node *larger = cfs_node_copy(n, slots + SPARE_SLOTS, room + SPARE_ROOM);
    if (!larger)
        return -ENOMEM;
    free(n);
    t->dirty[path->slot[depth]] = path->node[depth] = larger;
    return 0;
}

int cfs_tree_get(cfs_tree *t, const uint8_t *key, size_t key_size)
{
    if (t->root.offset == 0)
        return -ENOENT;
    cfs_path path;
    pthread_mutex_lock(&t->nodes->lock);
    int rc = cfs_tree_descend(t, key, key_size, &path);
    if (rc == 0) {
        rc = -ENOENT;
        if (path.exact) {
            cfs_entry e = cfs_entry_of(path.node[path.depth - 1], path.index[path.depth - 1]);
            memcpy(t->out, e.value, e.value_size);
            rc = e.value_size;
        }
    }
    pthread_mutex_unlock(&t->nodes->lock);
    return rc;
}

int cfs_tree_touch(cfs_tree *t, const uint8_t *keys, size_t size)
{
    int rc = 0;
    pthread_mutex_lock(&t->nodes->lock);
    for (size_t at = 0; rc == 0 && at < size;) {
        cfs_path path;
        size_t left = size - at, key_size = left < 2 ? 0 : cfs_get16(keys + at);
        if (left < 2 || key_size > left - 2)
            rc = -EINVAL;
        else if (t->root.offset != 0)
            rc = cfs_tree_descend(t, keys + at + 2, key_size, &path);
        at += 2 + key_size;
    }
    pthread_mutex_unlock(&t->nodes->lock);
    return rc;
}

static int copy_entries(cfs_tree *t, const cfs_node *n, unsigned first, unsigned last)
{
    unsigned begin = n->start[first], end = last < n->count ? n->start[last] : n->length;
    memcpy(t->out, cfs_body(n) + begin, end - begin);
    return (int)(end - begin);
}

/* Copies the leaf beside the one `path` leads to, on the right or on the left, unless all its keys are out of bounds:
   on the right at or above `bound`, on the left below it.  The keys above the leaves tell, and it is not read then. */
static int copy_neighbour(cfs_tree *t, const cfs_path *path, bool right, const uint8_t *bound, size_t bound_size)
{
    unsigned depth = path->depth - 1;
    do {
        if (depth-- == 0)
            return 0;
    } while (right ? path->index[depth] + 1u == path->node[depth]->count : path->index[depth] == 0);
    cfs_node *n = path->node[depth];
    unsigned index = path->index[depth];
    if (bound) {
        cfs_entry edge = cfs_entry_of(n, right ? index + 1 : index);
        int order = cfs_compare(edge.key, edge.key_size, bound, bound_size);
        if (right ? order >= 0 : order <= 0)
            return 0;
    }
    index = right ? index + 1 : index - 1;
    while (n->level > 0) {
        cfs_pointer p;
        cfs_child_pointer(&p, n, index);
        if (cfs_tree_want(t, &p, &n))
            return -EAGAIN;
        index = right ? 0 : n->count - 1u;
    }
    return copy_entries(t, n, 0, n->count);
}

int cfs_tree_forward(cfs_tree *t, const uint8_t *key, size_t key_size, int beyond, const uint8_t *high,
                     size_t high_size)
{
    if (t->root.offset == 0)
        return 0;
    cfs_path path;
    pthread_mutex_lock(&t->nodes->lock);
    int rc = cfs_tree_descend(t, key, key_size, &path);
    if (rc == 0) {
        const cfs_node *leaf = path.node[path.depth - 1];
        unsigned first = path.index[path.depth - 1] + (beyond && path.exact);
        rc = first < leaf->count ? copy_entries(t, leaf, first, leaf->count)
                                 : copy_neighbour(t, &path, true, high, high_size);
    }
    pthread_mutex_unlock(&t->nodes->lock);
    return rc;
}

int cfs_tree_backward(cfs_tree *t, const uint8_t *key, size_t key_size, const uint8_t *low, size_t low_size)
{
    if (t->root.offset == 0)
        return 0;
    cfs_path path;
    pthread_mutex_lock(&t->nodes->lock);
    int rc = cfs_tree_descend(t, key, key_size, &path);
    if (rc == 0) {
        unsigned last = path.index[path.depth - 1];
        rc = last > 0 ? copy_entries(t, path.node[path.depth - 1], 0, last)
                      : copy_neighbour(t, &path, false, low, low_size);
    }
    pthread_mutex_unlock(&t->nodes->lock);
    return rc;
}
