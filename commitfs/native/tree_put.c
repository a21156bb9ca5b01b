/* Putting an entry, splitting the nodes that become too long. */
#include <errno.h>
#include <stdlib.h>

#include "tree.h"

/* A body before its split: the longest a split leaves, and one more entry. */
#define BODY_BEFORE_SPLIT (2 * CFS_ENTRY_MAX + CFS_ENTRY_MAX)

/* No split leaves more than (longest before + longest entry) / 2 in a node, and that is the longest again:
   2 * CFS_ENTRY_MAX (N2). */
_Static_assert(2 * CFS_ENTRY_MAX <= CFS_BODY_MAX, "a node after a split can be stored");
_Static_assert(BODY_BEFORE_SPLIT + CFS_ENTRY_MAX < UINT16_MAX, "lengths fit their fields");

/* New nodes an insertion may need, one a level and a root, gotten beforehand. */
typedef struct {
    cfs_node *node[CFS_DEPTH_MAX + 1];
    unsigned count;
} spares;

static void release(spares *s)
{
    while (s->count)
        free(s->node[--s->count]);
}

/* Everything that splits along the way may need, the leaf's own room aside. */
static int prepare_splits(cfs_tree *t, cfs_path *path, spares *s)
{
    unsigned slots = 2;
    for (unsigned depth = 0; depth < path->depth; depth++) {
        if (depth + 1 < path->depth && cfs_tree_grow(t, path, depth, 1, CFS_BRANCH_MAX))
            return -ENOMEM;
        if (slots < path->node[depth]->slots)
            slots = path->node[depth]->slots;
    }
    if (cfs_tree_reserve_slots(t, path->depth + 1))
        return -ENOMEM;
    while (s->count < path->depth + 1) {
        cfs_node *spare = cfs_node_new(0, slots, BODY_BEFORE_SPLIT);
        if (!spare)
            return -ENOMEM;
        s->node[s->count++] = spare;
    }
    return 0;
}

/* Where to cut a node.  `inserted` is the entry put last, its count if that only replaced one; `followed` says that
   it came just behind the one put before.

   Keys that come in ascending order leave full nodes behind, also where they come between others (the names of a
   directory, the inodes of its files): an entry put at the end goes alone to the right, and one that followed
   parts what is above it from what is below.  Else the halves become as equal as they can. */
static unsigned cut_of(const cfs_node *n, unsigned inserted, bool followed)
{
    if (inserted + 1u == n->count)
        return inserted;
    if (followed && inserted < n->count && n->start[inserted + 1u] <= CFS_SPLIT &&
        n->length - n->start[inserted + 1u] <= CFS_SPLIT)
        return inserted + 1u;
    unsigned cut = 1;
    while (cut + 1u < n->count && 2u * n->start[cut] < n->length)
        cut++;
    if (cut > 1 && n->length - n->start[cut - 1] < n->start[cut])
        cut--;
    return cut;
}

/* Bytes of the shortest key that is above the last entry of `left` and not above the first of `right`. */
static size_t separator_size(const cfs_node *left, const cfs_node *right)
{
    cfs_entry low = cfs_entry_of(left, left->count - 1u), high = cfs_entry_of(right, 0);
    size_t size = 0;
    while (size + 1u < high.key_size && size < low.key_size && low.key[size] == high.key[size])
        size++;
    return size + 1;
}

/* Splits the node of the path at `depth` and puts the pointer to the new one into its parent, which has room; whether
   that followed the one put there before. */
static bool split(cfs_tree *t, cfs_path *path, unsigned depth, unsigned inserted, bool followed, spares *s)
{
    cfs_node *left = path->node[depth], *right = s->node[--s->count];
    unsigned cut = cut_of(left, inserted, followed);
    t->estimate -= cfs_stored_bound(left);
    right->level = left->level;
    cfs_node_append(right, left, cut, left->count);
    cfs_node_truncate(left, cut);
    if (cut <= inserted) {
        right->newest = (uint16_t)(inserted - cut);
        left->newest = UINT16_MAX;
    }
    t->estimate += cfs_stored_bound(left);

    uint8_t separator[CFS_KEY_MAX], pointer[CFS_POINTER];
    size_t size;
    if (left->level == 0) {
        size = separator_size(left, right);
        memcpy(separator, cfs_entry_of(right, 0).key, size);
    } else {
        cfs_entry first = cfs_entry_of(right, 0);
        size = first.key_size;
        memcpy(separator, first.key, size);
        cfs_node_blank_first(right);
    }
    cfs_pointer p = cfs_dirty_pointer(cfs_tree_adopt(t, right), right->level);
    cfs_put_pointer(pointer, &p);
    cfs_node *parent = path->node[depth - 1];
    t->estimate -= cfs_stored_bound(parent);
    unsigned index = path->index[depth - 1] + 1;
    followed = parent->newest + 1u == index;
    cfs_node_insert(parent, index, separator, size, pointer, sizeof pointer);
    t->estimate += cfs_stored_bound(parent);
    return followed;
}

/* Puts a new root above the old one, at the head of the path. */
static void raise_root(cfs_tree *t, cfs_path *path, spares *s)
{
    uint8_t pointer[CFS_POINTER];
    cfs_node *root = s->node[--s->count];
    root->level = (uint8_t)(path->node[0]->level + 1);
    cfs_put_pointer(pointer, &t->root);
    cfs_node_insert(root, 0, pointer, 0, pointer, sizeof pointer);
    uint32_t slot = cfs_tree_adopt(t, root);
    t->root = cfs_dirty_pointer(slot, root->level);
    for (unsigned depth = path->depth++; depth > 0; depth--) {
        path->node[depth] = path->node[depth - 1];
        path->slot[depth] = path->slot[depth - 1];
        path->index[depth] = path->index[depth - 1];
    }
    path->node[0] = root;
    path->slot[0] = slot;
    path->index[0] = 0;
}

static bool too_long(const cfs_node *n)
{
    return n->length > CFS_SPLIT && n->count > 1;
}

static void split_up(cfs_tree *t, cfs_path *path, unsigned inserted, bool followed, spares *s)
{
    unsigned depth = path->depth - 1;
    while (too_long(path->node[depth])) {
        if (depth == 0) {
            raise_root(t, path, s);
            depth = 1;
        }
        followed = split(t, path, depth, inserted, followed, s);
        depth--;
        inserted = path->index[depth] + 1;
    }
}

static int first_entry(cfs_tree *t, const uint8_t *key, size_t key_size, const uint8_t *value, size_t value_size)
{
    if (cfs_tree_reserve_slots(t, 1))
        return -ENOMEM;
    cfs_node *leaf = cfs_node_new(0, 16, CFS_ENTRY_MAX);
    if (!leaf)
        return -ENOMEM;
    cfs_node_insert(leaf, 0, key, key_size, value, value_size);
    t->root = cfs_dirty_pointer(cfs_tree_adopt(t, leaf), 0);
    t->changed = 1;
    t->edits++;
    return 0;
}

int cfs_tree_put_entry(cfs_tree *t, const uint8_t *key, size_t key_size, const uint8_t *value, size_t value_size)
{
    cfs_path path;
    if (cfs_tree_descend(t, key, key_size, &path))
        return -EAGAIN;
    unsigned last = path.depth - 1, index = path.index[last];
    uint16_t before = 0, bytes = cfs_entry_bytes(key_size, value_size);
    if (path.exact) {
        cfs_entry e = cfs_entry_of(path.node[last], index);
        if (e.value_size == value_size && memcmp(e.value, value, value_size) == 0)
            return 0;
        before = cfs_entry_bytes(e.key_size, e.value_size);
    }
    if (cfs_tree_own(t, &path) || cfs_tree_grow(t, &path, last, 1, bytes))
        return -ENOMEM;
    spares s = {.count = 0};
    if (path.node[last]->length - before + bytes > CFS_SPLIT) {
        int rc = path.node[0]->level == CFS_LEVEL_MAX ? -EOVERFLOW : prepare_splits(t, &path, &s);
        if (rc) {
            release(&s);
            return rc;
        }
    }

    t->edits++;
    cfs_node *leaf = path.node[last];
    t->estimate -= cfs_stored_bound(leaf);
    bool followed = false;
    if (path.exact) {
        cfs_node_replace(leaf, index, value, value_size);
        index = leaf->count;
    } else {
        followed = leaf->newest + 1u == index;
        cfs_node_insert(leaf, index, key, key_size, value, value_size);
    }
    t->estimate += cfs_stored_bound(leaf);
    split_up(t, &path, index, followed, &s);
    release(&s);
    return 0;
}

int cfs_tree_put(cfs_tree *t, const uint8_t *key, size_t key_size, const uint8_t *value, size_t value_size)
{
    if (key_size == 0 || key_size > CFS_KEY_MAX || value_size > CFS_VALUE_MAX)
        return -EINVAL;
    if (t->root.offset == 0)
        return first_entry(t, key, key_size, value, value_size);
    pthread_mutex_lock(&t->nodes->lock);
    int rc = cfs_tree_put_entry(t, key, key_size, value, value_size);
    pthread_mutex_unlock(&t->nodes->lock);
    return rc;
}

/* The edit at `at`, of `size` bytes in all: where the next begins, 0 where it makes no sense. */
static size_t next_edit(const uint8_t *edits, size_t size, size_t at, cfs_entry *e)
{
    if (size - at < CFS_LENGTHS)
        return 0;
    e->key_size = cfs_get16(edits + at);
    e->value_size = cfs_get16(edits + at + 2);
    e->key = edits + at + CFS_LENGTHS;
    e->value = e->key + e->key_size;
    size_t value_size = e->value_size == CFS_NO_VALUE ? 0 : e->value_size;
    if (e->key_size == 0 || e->key_size > CFS_KEY_MAX || value_size > CFS_VALUE_MAX ||
        size - at - CFS_LENGTHS < e->key_size + value_size)
        return 0;
    return at + CFS_LENGTHS + e->key_size + value_size;
}

static int apply_one(cfs_tree *t, const cfs_entry *e)
{
    if (e->value_size == CFS_NO_VALUE) {
        int rc = t->root.offset == 0 ? -ENOENT : cfs_tree_delete_entry(t, e->key, e->key_size);
        return rc == -ENOENT ? 0 : rc;
    }
    if (t->root.offset == 0)
        return first_entry(t, e->key, e->key_size, e->value, e->value_size);
    return cfs_tree_put_entry(t, e->key, e->key_size, e->value, e->value_size);
}

static int apply(cfs_tree *t, const uint8_t *edits, size_t size)
{
    cfs_entry e;
    cfs_path path;
    unsigned count = 0;
    for (size_t at = 0; at < size; count++) {
        at = next_edit(edits, size, at, &e);
        if (at == 0 || count == CFS_TOUCH_MAX)
            return -EINVAL;
        if (t->root.offset != 0 && cfs_tree_descend(t, e.key, e.key_size, &path))
            return -EAGAIN;
    }
    for (size_t at = 0; at < size;) {
        at = next_edit(edits, size, at, &e);
        int rc = apply_one(t, &e);
        if (rc)
            return rc;
    }
    return 0;
}

int cfs_tree_apply(cfs_tree *t, const uint8_t *edits, size_t size)
{
    pthread_mutex_lock(&t->nodes->lock);
    int rc = apply(t, edits, size);
    pthread_mutex_unlock(&t->nodes->lock);
    return rc;
}
