/* Writing a range of the store file, with and without making it durable. */
#ifndef CFS_DURABLE_H
#define CFS_DURABLE_H

#include <stdint.h>
#include <sys/uio.h>

/* Added to the errno of a failure of the sync proper, all data having been written. */
#define CFS_AT_SYNC 65536

/* Writes the pieces one behind the other at `offset` of `fd`.  `pieces` is used up on the way.
   Returns 0 or -errno.  Short writes go on; EINTR is tried again; a write of nothing is -EIO. */
int cfs_write_all(int fd, struct iovec *pieces, int count, int64_t offset);

/* The same, and the range is durable when it returns: pwritev2 with RWF_DSYNC, or where that is refused
   (EOPNOTSUPP, ENOSYS, EINVAL) pwritev and then fdatasync.

   Returns 0; -errno, after which it is unknown what was written and what of it is durable; or
   -(errno + CFS_AT_SYNC) if it was fdatasync that failed.  Never tries a failed sync again: the kernel may have
   dropped the pages. */
int cfs_write_durable(int fd, struct iovec *pieces, int count, int64_t offset);

/* Makes the whole file durable (fdatasync).  Returns 0 or -errno, also -EINTR: never tries again. */
int cfs_sync(int fd);

/* The two writes for a single piece. */
int cfs_write_all_one(int fd, const void *data, size_t size, int64_t offset);
int cfs_write_durable_one(int fd, const void *data, size_t size, int64_t offset);

#endif
