/* The bytes of the most frequent commit of all, one new file of one extent, in one piece. */
#ifndef CFS_NEW_FILE_H
#define CFS_NEW_FILE_H

#include "tree.h"

enum {
    CFS_UNIT = 65536,              /* bytes of a file that have a checksum of their own (format/extent.py) */
    CFS_EXTENT_MAX = 8 * CFS_UNIT,
    CFS_NEW_FILE_PATH = 3000,      /* no longer path: the facts have to fit */
};

/* What is told as numbers. */
typedef struct {
    uint64_t offset;        /* of the commit's bytes in the log */
    int64_t clock_ns, size; /* size: of the file, for the facts */
    uint64_t cookie;        /* of its dentry */
    uint32_t uid, pid;      /* who made it */
    uint32_t commit, ino, folder;
    uint32_t truncated;     /* facts are left out */
} cfs_new_file_numbers;

/* Puts a file into the tree and builds it: facts, data and nodes are at t->run then, the number of their bytes is
   returned, and the tree is clean.  `name` is the end of `path`; `inode` and `parent` are the values of the two inodes.

   -EAGAIN, -EINVAL (sizes), or -ENOMEM without an edit counted: nothing has changed; else some of it has. */
int64_t cfs_new_file(cfs_tree *t, const cfs_new_file_numbers *numbers, const uint8_t *program, size_t program_size,
                     const uint8_t *path, size_t path_size, size_t name_size, const uint8_t *inode, size_t inode_size,
                     const uint8_t *parent, size_t parent_size, const uint8_t *data, size_t data_size);

#endif
