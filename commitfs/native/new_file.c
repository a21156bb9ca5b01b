#include "new_file.h"

#include <errno.h>

#include "crc32c.h"

/* As docs/format.md lays them out; vfs/newfile.py is the reference in Python, format/ has the codecs. */
enum {
    FACTS_HEAD = 28,
    CHANGE_HEAD = 13,
    CHECKSUM = 4,
    OP_CREATE = 1,
    INODE = 1,
    DENTRY = 2,
    EXTENT = 3,
    TOMBSTONE = 6,
    KEY = 9,       /* inode, type */
    LONG_KEY = 17, /* and a number */
    DENTRY_HEAD = 9,
    EXTENT_HEAD = 20,
    KIND_REGULAR = 8,
    NAME_MAX_BYTES = 255,
    PROGRAM_MAX = 255,
};

static size_t put_facts(uint8_t *out, const cfs_new_file_numbers *n, const uint8_t *program, size_t program_size,
                        const uint8_t *path, size_t path_size)
{
    size_t size = FACTS_HEAD + program_size + CHANGE_HEAD + path_size + CHECKSUM;
    memcpy(out, "FACT", 4);
    cfs_put32(out + 4, (uint32_t)size);
    cfs_put64(out + 8, (uint64_t)n->clock_ns);
    cfs_put32(out + 16, n->uid);
    cfs_put32(out + 20, n->pid);
    cfs_put16(out + 24, 1);
    out[26] = n->truncated != 0;
    out[27] = (uint8_t)program_size;
    uint8_t *at = out + FACTS_HEAD;
    memcpy(at, program, program_size);
    at += program_size;
    at[0] = OP_CREATE;
    cfs_put16(at + 1, (uint16_t)path_size);
    cfs_put16(at + 3, 0);
    cfs_put64(at + 5, (uint64_t)n->size);
    memcpy(at + CHANGE_HEAD, path, path_size);
    at += CHANGE_HEAD + path_size;
    cfs_put32(at, cfs_crc32c(0, out, (size_t)(at - out)));
    return size;
}

/* An edit's lengths and its key; where its value goes. */
static uint8_t *put_key(uint8_t *at, uint64_t ino, uint8_t type, const uint64_t *number, size_t value_size)
{
    size_t key_size = number ? LONG_KEY : KEY;
    cfs_put16(at, (uint16_t)key_size);
    cfs_put16(at + 2, (uint16_t)value_size);
    at += CFS_LENGTHS;
    cfs_put64_big(at, ino);
    at[8] = type;
    if (number)
        cfs_put64_big(at + 9, *number);
    return at + key_size;
}

static uint8_t *put_extent(uint8_t *at, uint64_t offset, const uint8_t *data, size_t size)
{
    cfs_put32(at, (uint32_t)size);
    cfs_put32(at + 4, 0);
    cfs_put32(at + 8, (uint32_t)size);
    cfs_put64(at + 12, offset);
    at += EXTENT_HEAD;
    for (size_t done = 0; done < size; done += CFS_UNIT, at += CHECKSUM)
        cfs_put32(at, cfs_crc32c(0, data + done, size - done < CFS_UNIT ? size - done : CFS_UNIT));
    return at;
}

int64_t cfs_new_file(cfs_tree *t, const cfs_new_file_numbers *n, const uint8_t *program, size_t program_size,
                     const uint8_t *path, size_t path_size, size_t name_size, const uint8_t *inode, size_t inode_size,
                     const uint8_t *parent, size_t parent_size, const uint8_t *data, size_t data_size)
{
    if (program_size > PROGRAM_MAX || path_size > CFS_NEW_FILE_PATH || name_size > path_size ||
        name_size > NAME_MAX_BYTES || inode_size > CFS_VALUE_MAX || parent_size > CFS_VALUE_MAX || data_size == 0 ||
        data_size > CFS_EXTENT_MAX)
        return -EINVAL;
    size_t facts_size = FACTS_HEAD + program_size + CHANGE_HEAD + path_size + CHECKSUM;
    size_t extent_size = EXTENT_HEAD + CHECKSUM * ((data_size + CFS_UNIT - 1) / CFS_UNIT);
    size_t ahead = facts_size + data_size;

    /* The order is that of the general way: it decides where nodes are split. */
    uint8_t edits[4 * (CFS_LENGTHS + LONG_KEY) + CFS_LENGTHS + KEY + DENTRY_HEAD + NAME_MAX_BYTES + EXTENT_HEAD +
                  CHECKSUM * (CFS_EXTENT_MAX / CFS_UNIT) + 2 * CFS_VALUE_MAX];
    const uint64_t start = 0;
    uint8_t *at = put_key(edits, n->folder, DENTRY, &n->cookie, DENTRY_HEAD + name_size);
    at[0] = KIND_REGULAR;
    cfs_put32(at + 1, n->commit);
    cfs_put32(at + 5, n->ino);
    memcpy(at + DENTRY_HEAD, path + path_size - name_size, name_size);
    at = put_key(at + DENTRY_HEAD + name_size, n->folder, TOMBSTONE, &n->cookie, CFS_NO_VALUE);
    at = put_key(at, n->folder, INODE, NULL, parent_size);
    memcpy(at, parent, parent_size);
    at = put_key(at + parent_size, n->ino, EXTENT, &start, extent_size);
    at = put_extent(at, n->offset + facts_size, data, data_size);
    at = put_key(at, n->ino, INODE, NULL, inode_size);
    memcpy(at, inode, inode_size);
    at += inode_size;

    int64_t rc = cfs_tree_run_room(t, ahead);
    if (rc == 0)
        rc = cfs_tree_apply(t, edits, (size_t)(at - edits));
    if (rc == 0)
        rc = cfs_tree_build_begin(t);
    if (rc == 0)
        rc = cfs_tree_build_run(t, n->offset + ahead, ahead);
    if (rc < 0)
        return rc;
    put_facts(t->run, n, program, program_size, path, path_size);
    memcpy(t->run + facts_size, data, data_size);
    cfs_tree_build_finish(t);
    return (int64_t)ahead + rc;
}
