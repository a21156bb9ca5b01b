#include "cache.h"

#include <errno.h>
#include <stdlib.h>

#include "crc32c.h"

cfs_nodes *cfs_nodes_new(size_t limit)
{
    cfs_nodes *nodes = calloc(1, sizeof *nodes);
    if (!nodes)
        return NULL;
    size_t buckets = CFS_NODES_MIN;
    while (buckets < limit / 1024 && buckets < SIZE_MAX / 16)
        buckets *= 2;
    nodes->buckets = calloc(buckets, sizeof *nodes->buckets);
    if (!nodes->buckets) {
        free(nodes);
        return NULL;
    }
    nodes->mask = buckets - 1;
    nodes->limit = limit;
    pthread_mutex_init(&nodes->lock, NULL);
    return nodes;
}

void cfs_nodes_free(cfs_nodes *nodes)
{
    if (!nodes)
        return;
    for (cfs_node *n = nodes->newest, *older; n; n = older) {
        older = n->older;
        free(n);
    }
    pthread_mutex_destroy(&nodes->lock);
    free(nodes->buckets);
    free(nodes);
}

/* Offsets are multiples of 8 with nodes some hundred bytes apart: a multiplication spreads them. */
static cfs_node **bucket_of(cfs_nodes *nodes, uint64_t offset)
{
    return nodes->buckets + ((offset * UINT64_C(0x9e3779b97f4a7c15)) >> 32 & nodes->mask);
}

static void take_out_of_order(cfs_nodes *nodes, cfs_node *n)
{
    *(n->newer ? &n->newer->older : &nodes->newest) = n->older;
    *(n->older ? &n->older->newer : &nodes->oldest) = n->newer;
}

static void make_newest(cfs_nodes *nodes, cfs_node *n)
{
    n->newer = NULL;
    n->older = nodes->newest;
    *(n->older ? &n->older->newer : &nodes->oldest) = n;
    nodes->newest = n;
}

static void drop(cfs_nodes *nodes, cfs_node *n)
{
    cfs_node **link = bucket_of(nodes, n->at.offset);
    while (*link != n)
        link = &(*link)->chain;
    *link = n->chain;
    take_out_of_order(nodes, n);
    nodes->bytes -= cfs_node_bytes(n);
    nodes->count--;
    free(n);
}

static cfs_node *at_offset(cfs_nodes *nodes, uint64_t offset)
{
    cfs_node *n = *bucket_of(nodes, offset);
    while (n && n->at.offset != offset)
        n = n->chain;
    return n;
}

cfs_node *cfs_nodes_find(cfs_nodes *nodes, const cfs_pointer *p)
{
    cfs_node *n = at_offset(nodes, p->offset);
    /* A pointer that differs in the rest is damaged, or names bytes written anew: what is read then decides. */
    if (!n || !cfs_same_pointer(&n->at, p))
        return NULL;
    if (n != nodes->newest) {
        take_out_of_order(nodes, n);
        make_newest(nodes, n);
    }
    return n;
}

void cfs_nodes_put(cfs_nodes *nodes, cfs_node *n)
{
    cfs_node *before = at_offset(nodes, n->at.offset);
    if (before)
        drop(nodes, before);
    cfs_node **bucket = bucket_of(nodes, n->at.offset);
    n->chain = *bucket;
    *bucket = n;
    make_newest(nodes, n);
    nodes->bytes += cfs_node_bytes(n);
    nodes->count++;
    while (nodes->bytes > nodes->limit && nodes->count > CFS_NODES_MIN)
        drop(nodes, nodes->oldest);
}

int cfs_nodes_load(cfs_nodes *nodes, uint64_t offset, uint32_t length, uint32_t level, uint32_t crc,
                   const uint8_t *stored, size_t size)
{
    if (size != length || cfs_crc32c(0, stored, size) != crc)
        return -EBADMSG;
    cfs_node *n;
    int rc = cfs_node_decode(stored, size, level, &n);
    if (rc)
        return rc;
    n->at = (cfs_pointer){offset, length, level, crc};
    pthread_mutex_lock(&nodes->lock);
    cfs_nodes_put(nodes, n);
    pthread_mutex_unlock(&nodes->lock);
    return 0;
}

int cfs_nodes_entries(cfs_nodes *nodes, uint64_t offset, uint32_t length, uint32_t level, uint32_t crc, uint8_t *out)
{
    cfs_pointer p = {offset, length, level, crc};
    pthread_mutex_lock(&nodes->lock);
    cfs_node *n = cfs_nodes_find(nodes, &p);
    int rc = -EAGAIN;
    if (n) {
        rc = n->length;
        memcpy(out, cfs_body(n), n->length);
    }
    pthread_mutex_unlock(&nodes->lock);
    return rc;
}

void cfs_nodes_forget(cfs_nodes *nodes, uint64_t offset)
{
    pthread_mutex_lock(&nodes->lock);
    for (cfs_node *n = nodes->newest, *older; n; n = older) {
        older = n->older;
        if (n->at.offset >= offset)
            drop(nodes, n);
    }
    pthread_mutex_unlock(&nodes->lock);
}
