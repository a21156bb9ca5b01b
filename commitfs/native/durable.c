#include "durable.h"

#include <errno.h>
#include <limits.h>
#include <unistd.h>

#ifndef IOV_MAX
#define IOV_MAX 1024
#endif

/* What is still to be written. */
typedef struct {
    struct iovec *pieces;
    int count;
    int64_t offset;
} rest;

static void step_over(rest *left, size_t written)
{
    left->offset += (int64_t)written;
    while (written >= left->pieces->iov_len) {
        written -= left->pieces->iov_len;
        left->pieces++;
        if (--left->count == 0)
            return;
    }
    left->pieces->iov_base = (uint8_t *)left->pieces->iov_base + written;
    left->pieces->iov_len -= written;
}

/* Interrupted with RWF_DSYNC the range may be written and not synced: writing it again makes its pages dirty
   again, so that nothing the interrupted sync dropped is lost. */
static int write_rest(int fd, rest *left, int flags)
{
    while (left->count > 0) {
        if (left->pieces->iov_len == 0) {
            left->pieces++;
            left->count--;
            continue;
        }
        int now = left->count < IOV_MAX ? left->count : IOV_MAX;
        ssize_t written = pwritev2(fd, left->pieces, now, left->offset, flags);
        if (written > 0)
            step_over(left, (size_t)written);
        else if (written == 0)
            return -EIO;
        else if (errno != EINTR)
            return -errno;
    }
    return 0;
}

int cfs_write_all(int fd, struct iovec *pieces, int count, int64_t offset)
{
    rest left = {pieces, count, offset};
    return write_rest(fd, &left, 0);
}

int cfs_sync(int fd)
{
    /* Not even EINTR is tried again: the interrupted call may have consumed the report of a lost page. */
    return fdatasync(fd) ? -errno : 0;
}

int cfs_write_durable(int fd, struct iovec *pieces, int count, int64_t offset)
{
    rest left = {pieces, count, offset};
    int rc = write_rest(fd, &left, RWF_DSYNC);
    if (rc != -EOPNOTSUPP && rc != -ENOSYS && rc != -EINVAL)
        return rc;
    rc = write_rest(fd, &left, 0);
    if (rc)
        return rc;
    rc = cfs_sync(fd);
    return rc ? rc - CFS_AT_SYNC : 0;
}

int cfs_write_all_one(int fd, const void *data, size_t size, int64_t offset)
{
    struct iovec piece = {.iov_base = (void *)(uintptr_t)data, .iov_len = size};
    return cfs_write_all(fd, &piece, 1, offset);
}

int cfs_write_durable_one(int fd, const void *data, size_t size, int64_t offset)
{
    struct iovec piece = {.iov_base = (void *)(uintptr_t)data, .iov_len = size};
    return cfs_write_durable(fd, &piece, 1, offset);
}
