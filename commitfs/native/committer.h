/* One thread that writes durably while the caller does other things; an eventfd says when it is done. */
#ifndef CFS_COMMITTER_H
#define CFS_COMMITTER_H

#include <stdint.h>
#include <sys/uio.h>

typedef struct cfs_committer cfs_committer;

/* NULL with *error = -errno if the thread or the eventfd cannot be had. */
cfs_committer *cfs_committer_new(int *error);

/* Becomes readable when the write under way has ended; non-blocking, close-on-exec. */
int cfs_committer_fileno(const cfs_committer *c);

/* Hands over one write; `pieces` and what they point to must stay until finish.  -EBUSY while one is not
   yet finished. */
int cfs_committer_submit(cfs_committer *c, int fd, struct iovec *pieces, int count, int64_t offset);

/* Waits for the write handed over and returns its result, that of cfs_write_durable; -EINVAL if there is none.
   Resets the eventfd. */
int cfs_committer_finish(cfs_committer *c);

/* Waits for the write under way, ends the thread, closes the eventfd and frees `c`. */
void cfs_committer_free(cfs_committer *c);

#endif
