#include "node.h"

#include <errno.h>
#include <stdlib.h>

#define POINTER_SHIFT 24

void cfs_get_pointer(cfs_pointer *p, const uint8_t *at)
{
    uint32_t size = cfs_get32(at + 8);
    p->offset = cfs_get64(at);
    p->length = size & ((UINT32_C(1) << POINTER_SHIFT) - 1);
    p->level = size >> POINTER_SHIFT;
    p->crc = cfs_get32(at + 12);
}

void cfs_put_pointer(uint8_t *at, const cfs_pointer *p)
{
    cfs_put64(at, p->offset);
    cfs_put32(at + 8, p->length | p->level << POINTER_SHIFT);
    cfs_put32(at + 12, p->crc);
}

cfs_node *cfs_node_new(uint8_t level, unsigned slots, unsigned room)
{
    cfs_node *n = malloc(sizeof *n + slots * sizeof n->start[0] + room);
    if (!n)
        return NULL;
    memset(n, 0, sizeof *n);
    n->level = level;
    n->slots = (uint16_t)slots;
    n->room = (uint16_t)room;
    n->newest = UINT16_MAX;
    return n;
}

cfs_node *cfs_node_copy(const cfs_node *n, unsigned more_slots, unsigned more_room)
{
    cfs_node *copy = cfs_node_new(n->level, n->count + more_slots, n->length + more_room);
    if (!copy)
        return NULL;
    copy->count = n->count;
    copy->length = n->length;
    copy->newest = n->newest;
    memcpy(copy->start, n->start, n->count * sizeof n->start[0]);
    memcpy(cfs_body(copy), cfs_body(n), n->length);
    return copy;
}

unsigned cfs_node_find(const cfs_node *n, const uint8_t *key, size_t size, bool *exact)
{
    unsigned low = 0, high = n->count, equal = n->count;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        cfs_entry e = cfs_entry_of(n, middle);
        int order = cfs_compare(e.key, e.key_size, key, size);
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
            if (order == 0)
                equal = middle;
        }
    }
    /* Not merely "an equal one was seen": nodes of a hostile tree, each in order, may be merged to one that is not. */
    *exact = low < n->count && equal == low;
    return low;
}

unsigned cfs_node_child(const cfs_node *n, const uint8_t *key, size_t size)
{
    bool exact;
    unsigned i = cfs_node_find(n, key, size, &exact);
    return exact || i == 0 ? i : i - 1;
}

void cfs_child_pointer(cfs_pointer *p, const cfs_node *n, unsigned i)
{
    cfs_get_pointer(p, cfs_entry_of(n, i).value);
}

/* Bytes at which entry `i` begins; of the one behind the last, the length of the body. */
static unsigned start_of(const cfs_node *n, unsigned i)
{
    return i < n->count ? n->start[i] : n->length;
}

void cfs_node_insert(cfs_node *n, unsigned i, const uint8_t *key, size_t key_size, const uint8_t *value,
                     size_t value_size)
{
    uint16_t bytes = cfs_entry_bytes(key_size, value_size);
    unsigned begin = start_of(n, i);
    uint8_t *at = cfs_body(n) + begin;
    memmove(at + bytes, at, n->length - begin);
    for (unsigned k = n->count; k > i; k--)
        n->start[k] = (uint16_t)(n->start[k - 1] + bytes);
    n->start[i] = (uint16_t)begin;
    n->newest = (uint16_t)i;
    n->count++;
    n->length = (uint16_t)(n->length + bytes);
    cfs_put16(at, (uint16_t)key_size);
    cfs_put16(at + 2, (uint16_t)value_size);
    memcpy(at + CFS_LENGTHS, key, key_size);
    memcpy(at + CFS_LENGTHS + key_size, value, value_size);
}

void cfs_node_remove(cfs_node *n, unsigned i)
{
    unsigned begin = n->start[i], end = start_of(n, i + 1);
    uint8_t *body = cfs_body(n);
    memmove(body + begin, body + end, n->length - end);
    for (unsigned k = i + 1; k < n->count; k++)
        n->start[k - 1] = (uint16_t)(n->start[k] - (end - begin));
    n->count--;
    n->length = (uint16_t)(n->length - (end - begin));
}

void cfs_node_replace(cfs_node *n, unsigned i, const uint8_t *value, size_t value_size)
{
    cfs_entry e = cfs_entry_of(n, i);
    if (e.value_size != value_size) {
        uint8_t key[CFS_KEY_MAX];
        uint16_t newest = n->newest;
        memcpy(key, e.key, e.key_size);
        cfs_node_remove(n, i);
        cfs_node_insert(n, i, key, e.key_size, value, value_size);
        n->newest = newest;
    } else {
        memcpy(cfs_body(n) + (e.value - cfs_body(n)), value, value_size);
    }
}

void cfs_node_append(cfs_node *n, const cfs_node *from, unsigned first, unsigned last)
{
    unsigned begin = start_of(from, first), end = start_of(from, last);
    for (unsigned k = first; k < last; k++)
        n->start[n->count++] = (uint16_t)(from->start[k] - begin + n->length);
    memcpy(cfs_body(n) + n->length, cfs_body(from) + begin, end - begin);
    n->length = (uint16_t)(n->length + (end - begin));
}

void cfs_node_truncate(cfs_node *n, unsigned count)
{
    n->length = (uint16_t)start_of(n, count);
    n->count = (uint16_t)count;
}

void cfs_node_blank_first(cfs_node *n)
{
    uint8_t pointer[CFS_POINTER];
    uint16_t newest = n->newest;
    memcpy(pointer, cfs_entry_of(n, 0).value, sizeof pointer);
    cfs_node_remove(n, 0);
    cfs_node_insert(n, 0, pointer, 0, pointer, sizeof pointer);
    n->newest = newest;
}

size_t cfs_node_encode(unsigned level, const uint8_t *body, size_t length, unsigned count, uint8_t *out,
                       LZ4_stream_t *lz4)
{
    /* As a stream begun anew, which spares clearing 16 KiB of table: .42 us against .66 for 900 bytes.  That asks for
       room enough never to fail. */
    LZ4_resetStream_fast(lz4);
    int packed = LZ4_compress_fast_continue(lz4, (const char *)body, (char *)out + CFS_HEADER, (int)length,
                                            CFS_ENCODED_MAX - CFS_HEADER, 1);
    bool smaller = packed > 0 && (size_t)packed < length; /* N3 */
    if (!smaller)
        memcpy(out + CFS_HEADER, body, length);
    out[0] = 'C';
    out[1] = 'N';
    out[2] = (uint8_t)level;
    out[3] = smaller ? CFS_LZ4 : CFS_RAW;
    cfs_put16(out + 4, (uint16_t)length);
    cfs_put16(out + 6, (uint16_t)count);
    return CFS_HEADER + (smaller ? (size_t)packed : length);
}

/* The body of a stored node into `body`, which has room for the `length` its header names. */
static bool unpack(const uint8_t *stored, size_t size, uint8_t *body, size_t length)
{
    if (stored[3] == CFS_RAW) {
        if (size != length)
            return false;
        memcpy(body, stored + CFS_HEADER, length);
        return true;
    }
    /* LZ4 lets a match begin where it is copied to, and would bring to light what was in memory there. */
    memset(body, 0, length);
    return stored[3] == CFS_LZ4 && size < length &&
           LZ4_decompress_safe((const char *)stored + CFS_HEADER, (char *)body, (int)size, (int)length) == (int)length;
}

static bool child_fits(const cfs_entry *e, uint32_t level)
{
    if (e->value_size != CFS_POINTER)
        return false;
    cfs_pointer p;
    cfs_get_pointer(&p, e->value);
    return p.offset != 0 && p.offset < CFS_DIRTY && p.length > CFS_HEADER && p.length <= CFS_STORED_MAX &&
           p.level == level - 1;
}

/* Finds where the entries begin, and checks them (N4 to N6). */
static bool index_entries(cfs_node *n)
{
    const uint8_t *body = cfs_body(n);
    unsigned at = 0;
    for (unsigned i = 0; i < n->count; i++) {
        if (n->length - at < CFS_LENGTHS)
            return false;
        n->start[i] = (uint16_t)at;
        unsigned key_size = cfs_get16(body + at), value_size = cfs_get16(body + at + 2);
        if (key_size > CFS_KEY_MAX || value_size > CFS_VALUE_MAX ||
            n->length - at - CFS_LENGTHS < key_size + value_size)
            return false;
        cfs_entry e = cfs_entry_of(n, i);
        if (n->level > 0 && !child_fits(&e, n->level))
            return false;
        if (i == 0) {
            if ((key_size == 0) != (n->level > 0))
                return false;
        } else {
            cfs_entry before = cfs_entry_of(n, i - 1);
            if (cfs_compare(before.key, before.key_size, e.key, e.key_size) >= 0)
                return false;
        }
        at += CFS_LENGTHS + key_size + value_size;
    }
    return at == n->length;
}

int cfs_node_decode(const uint8_t *stored, size_t size, uint32_t level, cfs_node **out)
{
    if (size <= CFS_HEADER || size > CFS_STORED_MAX || level > CFS_LEVEL_MAX)
        return -EBADMSG;
    unsigned length = cfs_get16(stored + 4), count = cfs_get16(stored + 6);
    if (stored[0] != 'C' || stored[1] != 'N' || stored[2] != level || length > CFS_BODY_MAX || count == 0 ||
        count > length / CFS_LENGTHS)
        return -EBADMSG;
    cfs_node *n = cfs_node_new((uint8_t)level, count, length);
    if (!n)
        return -ENOMEM;
    n->count = (uint16_t)count;
    n->length = (uint16_t)length;
    if (!unpack(stored, size - CFS_HEADER, cfs_body(n), length) || !index_entries(n)) {
        free(n);
        return -EBADMSG;
    }
    *out = n;
    return 0;
}
