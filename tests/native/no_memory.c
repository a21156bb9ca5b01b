/* Run by test_no_memory.py: the tree with every allocation failing once (T1, T2), under the sanitizers, which also look
   for leaks.

   Each operation is tried with its first allocation failing, then its second, and so on until it succeeds; after each
   failure the whole tree is compared with a model. */
#include <errno.h>
#include <lz4.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long allocations_left = -1; /* below 0: without limit */
static unsigned long failures;

static bool fails(void)
{
    if (allocations_left < 0 || allocations_left-- > 0)
        return false;
    allocations_left = 0;
    failures++;
    return true;
}

static void *failing_malloc(size_t size)
{
    return fails() ? NULL : malloc(size);
}

static void *failing_calloc(size_t count, size_t size)
{
    return fails() ? NULL : calloc(count, size);
}

static void *failing_realloc(void *at, size_t size)
{
    return fails() ? NULL : realloc(at, size);
}

#define malloc failing_malloc
#define calloc failing_calloc
#define realloc failing_realloc
#include "cache.c"
#include "crc32c.c"
#include "node.c"
#include "tree.c"
#include "tree_build.c"
#include "tree_delete.c"
#include "tree_put.c"
#undef malloc
#undef calloc
#undef realloc

#define KEYS 400

static struct {
    bool there;
    unsigned size, seed;
} model[KEYS];

static struct {
    uint8_t *bytes;
    size_t size;
} logged;

static cfs_nodes *nodes;
static cfs_tree *tree;

static void check(bool right, const char *what)
{
    if (!right) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

static size_t key_of(unsigned n, uint8_t *key)
{
    size_t size = n % 7 == 0 ? CFS_KEY_MAX : 2 + n % 5;
    key[0] = (uint8_t)(n >> 8);
    key[1] = (uint8_t)n;
    memset(key + 2, 'k', size - 2);
    return size;
}

static void value_of(unsigned n, uint8_t *value)
{
    for (unsigned i = 0; i < model[n].size; i++)
        value[i] = (uint8_t)(model[n].seed * (i + 1) >> 3);
}

/* After -EAGAIN: loads what is wanted, also with failing allocations. */
static void load(void)
{
    cfs_pointer p = tree->need;
    int rc = cfs_nodes_load(nodes, p.offset, p.length, p.level, p.crc, logged.bytes + p.offset, p.length);
    if (rc == -ENOMEM) {
        allocations_left = -1;
        load();
        return;
    }
    check(rc == 0, "a node cannot be loaded");
}

static void compare_all(void)
{
    long before = allocations_left;
    allocations_left = -1;
    for (unsigned n = 0; n < KEYS; n++) {
        uint8_t key[CFS_KEY_MAX], value[CFS_VALUE_MAX];
        size_t size = key_of(n, key);
        int rc;
        while ((rc = cfs_tree_get(tree, key, size)) == -EAGAIN)
            load();
        check(rc == (model[n].there ? (int)model[n].size : -ENOENT), "an entry is missing or too many");
        value_of(n, value);
        check(rc < 0 || memcmp(tree->out, value, (size_t)rc) == 0, "a value is wrong");
    }
    allocations_left = before;
}

static int put_once(const uint8_t *key, size_t size, const uint8_t *value, unsigned value_size)
{
    int rc;
    while ((rc = cfs_tree_put(tree, key, size, value, value_size)) == -EAGAIN)
        load();
    return rc;
}

static int delete_once(const uint8_t *key, size_t size)
{
    int rc;
    while ((rc = cfs_tree_delete(tree, key, size)) == -EAGAIN)
        load();
    return rc;
}

static int build_once(void)
{
    int rc = cfs_tree_build_begin(tree);
    if (rc)
        return rc;
    uint64_t offset = 0;
    while ((rc = cfs_tree_build_store(tree, offset)) > 0) {
        offset = logged.size;
        logged.bytes = realloc(logged.bytes, logged.size + (size_t)rc);
        memcpy(logged.bytes + logged.size, tree->out, (size_t)rc);
        logged.size += (size_t)rc;
    }
    return rc;
}

static void change(unsigned n, bool there)
{
    uint8_t key[CFS_KEY_MAX], value[CFS_VALUE_MAX];
    size_t size = key_of(n, key);
    unsigned old_size = model[n].size, old_seed = model[n].seed;
    unsigned new_size = (unsigned)rand() % 3 ? (unsigned)rand() % 60 : CFS_VALUE_MAX, new_seed = (unsigned)rand();
    for (long good = 0;; good++) {
        model[n].size = new_size;
        model[n].seed = new_seed;
        value_of(n, value);
        allocations_left = good;
        int rc = there ? put_once(key, size, value, new_size) : delete_once(key, size);
        allocations_left = -1;
        if (rc == 0 || rc == -ENOENT) {
            check(there ? rc == 0 : (rc == 0) == model[n].there, "a wrong answer");
            model[n].there = there;
            return;
        }
        check(rc == -ENOMEM, "an error of another kind");
        model[n].size = old_size;
        model[n].seed = old_seed;
        compare_all();
    }
}

static void build(void)
{
    for (long good = 0;; good++) {
        allocations_left = good;
        int rc = build_once();
        allocations_left = -1;
        compare_all();
        if (rc == 0)
            break;
        check(rc == -ENOMEM && tree->changed, "a failed build");
    }
    check(!tree->changed && tree->estimate == 0, "a built tree is clean");
}

static void reopen(void)
{
    cfs_pointer root = tree->root;
    cfs_tree_free(tree);
    cfs_nodes_free(nodes);
    nodes = cfs_nodes_new(0);
    tree = cfs_tree_new(nodes, root.offset, root.length, root.level, root.crc);
    compare_all();
}

int main(void)
{
    for (long good = 0; good < 2; good++) {
        allocations_left = good;
        check(cfs_nodes_new(1 << 20) == NULL, "a cache without memory");
    }
    allocations_left = -1;
    nodes = cfs_nodes_new(0);
    allocations_left = 0;
    check(cfs_tree_new(nodes, 0, 0, 0, 0) == NULL, "a tree without memory");
    allocations_left = -1;
    tree = cfs_tree_new(nodes, 0, 0, 0, 0);
    logged.size = 8;
    logged.bytes = malloc(8);
    for (unsigned turn = 0; turn < 24; turn++) {
        for (unsigned i = 0; i < 120; i++) {
            unsigned n = turn % 3 ? (unsigned)rand() % KEYS : i;
            change(n, turn % 4 == 3 ? rand() % 8 == 0 : rand() % 4 != 0);
        }
        if (turn % 2)
            build();
        if (turn % 6 == 5)
            reopen();
        compare_all();
    }
    for (unsigned n = 0; n < KEYS; n++)
        change(n, false);
    check(tree->root.offset == 0 && tree->estimate == 0, "all deleted");
    change(7, true);
    cfs_tree_free(tree);
    cfs_nodes_free(nodes);
    free(logged.bytes);
    printf("%lu\n", failures);
    return 0;
}
