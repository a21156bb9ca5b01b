/* Deleting an entry: empty nodes vanish, short ones merge with a neighbour that is at hand. */
#include <errno.h>

#include "tree.h"

/* Takes entry `i` out of a dirty node. */
static void take_out(cfs_tree *t, cfs_node *n, unsigned i)
{
    t->estimate -= cfs_stored_bound(n);
    cfs_node_remove(n, i);
    if (i == 0 && n->level > 0 && n->count > 0)
        cfs_node_blank_first(n);
    t->estimate += cfs_stored_bound(n);
}

/* Merges child `i + 1` of the node at `depth` of `path` into child `i`, if both are at hand, short enough together and
   memory allows; whether it did.  `path` may lead anywhere below. */
static bool merge(cfs_tree *t, const cfs_path *path, unsigned depth, unsigned i)
{
    const cfs_node *parent = path->node[depth];
    cfs_pointer at_left, at_right;
    cfs_child_pointer(&at_left, parent, i);
    cfs_child_pointer(&at_right, parent, i + 1);
    cfs_node *left = cfs_tree_node(t, &at_left), *right = cfs_tree_node(t, &at_right);
    if (!left || !right)
        return false;
    cfs_entry separator = cfs_entry_of(parent, i + 1);
    unsigned more = left->level > 0 ? separator.key_size : 0u; /* the first key of `right`, blank until now */
    if (left->length + right->length + more > CFS_MERGED)
        return false;

    cfs_path to_left = {.depth = depth + 2};
    to_left.node[depth] = path->node[depth];
    to_left.index[depth] = i;
    to_left.node[depth + 1] = left;
    to_left.slot[depth + 1] = cfs_is_dirty(&at_left) ? (uint32_t)(at_left.offset - CFS_DIRTY) : CFS_CLEAN;
    if (cfs_tree_own_at(t, &to_left, depth + 1) ||
        cfs_tree_grow(t, &to_left, depth + 1, right->count, right->length + more))
        return false;
    left = to_left.node[depth + 1];
    t->estimate -= cfs_stored_bound(left);
    unsigned rest = 0;
    if (left->level > 0) {
        cfs_node_insert(left, left->count, separator.key, separator.key_size, cfs_entry_of(right, 0).value, CFS_POINTER);
        rest = 1;
    }
    cfs_node_append(left, right, rest, right->count);
    t->estimate += cfs_stored_bound(left);
    if (cfs_is_dirty(&at_right))
        cfs_tree_discard(t, (uint32_t)(at_right.offset - CFS_DIRTY));
    take_out(t, path->node[depth], i + 1);
    return true;
}

/* While the root has a single child, that is the root. */
static void lower_root(cfs_tree *t)
{
    while (cfs_is_dirty(&t->root)) {
        uint32_t slot = (uint32_t)(t->root.offset - CFS_DIRTY);
        const cfs_node *root = t->dirty[slot];
        if (root->count == 0)
            t->root = (cfs_pointer){0, 0, 0, 0};
        else if (root->level > 0 && root->count == 1)
            cfs_child_pointer(&t->root, root, 0);
        else
            return;
        cfs_tree_discard(t, slot);
    }
}

int cfs_tree_delete_entry(cfs_tree *t, const uint8_t *key, size_t key_size)
{
    cfs_path path;
    if (cfs_tree_descend(t, key, key_size, &path))
        return -EAGAIN;
    if (!path.exact)
        return -ENOENT;
    if (cfs_tree_own(t, &path))
        return -ENOMEM;
    t->edits++;
    unsigned depth = path.depth - 1;
    take_out(t, path.node[depth], path.index[depth]);
    for (; depth > 0; depth--) {
        unsigned i = path.index[depth - 1];
        if (path.node[depth]->count == 0) {
            cfs_tree_discard(t, path.slot[depth]);
            take_out(t, path.node[depth - 1], i);
            continue;
        }
        if (path.node[depth]->length >= CFS_LOW)
            break;
        bool merged = i > 0 && merge(t, &path, depth - 1, i - 1);
        if (!merged && i + 1u < path.node[depth - 1]->count)
            merged = merge(t, &path, depth - 1, i);
        if (!merged)
            break;
    }
    lower_root(t);
    return 0;
}

int cfs_tree_delete(cfs_tree *t, const uint8_t *key, size_t key_size)
{
    if (t->root.offset == 0)
        return -ENOENT;
    pthread_mutex_lock(&t->nodes->lock);
    int rc = cfs_tree_delete_entry(t, key, key_size);
    pthread_mutex_unlock(&t->nodes->lock);
    return rc;
}
