#include "committer.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "durable.h"

/* IDLE -> HANDED (submit) -> DONE (the thread) -> IDLE (finish) */
enum state { IDLE, HANDED, DONE };

struct cfs_committer {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum state state;
    bool quit;
    int event;
    int fd, count, result;
    struct iovec *pieces;
    int64_t offset;
};

static void *work(void *of)
{
    cfs_committer *c = of;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (c->state != HANDED && !c->quit)
            pthread_cond_wait(&c->changed, &c->lock);
        if (c->state != HANDED)
            break;
        pthread_mutex_unlock(&c->lock);
        int result = cfs_write_durable(c->fd, c->pieces, c->count, c->offset);
        pthread_mutex_lock(&c->lock);
        c->result = result;
        c->state = DONE;
        pthread_cond_broadcast(&c->changed);
        eventfd_write(c->event, 1);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

cfs_committer *cfs_committer_new(int *error)
{
    cfs_committer *c = calloc(1, sizeof *c);
    if (!c) {
        *error = -ENOMEM;
        return NULL;
    }
    c->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->event < 0) {
        *error = -errno;
        free(c);
        return NULL;
    }
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    /* Signals are for the interpreter's main thread, where they wake its event loop. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&c->thread, NULL, work, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) {
        close(c->event);
        pthread_cond_destroy(&c->changed);
        pthread_mutex_destroy(&c->lock);
        free(c);
        *error = -rc;
        return NULL;
    }
    *error = 0;
    return c;
}

int cfs_committer_fileno(const cfs_committer *c)
{
    return c->event;
}

int cfs_committer_submit(cfs_committer *c, int fd, struct iovec *pieces, int count, int64_t offset)
{
    int rc = -EBUSY;
    pthread_mutex_lock(&c->lock);
    if (c->state == IDLE) {
        c->fd = fd;
        c->pieces = pieces;
        c->count = count;
        c->offset = offset;
        c->state = HANDED;
        pthread_cond_broadcast(&c->changed);
        rc = 0;
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

int cfs_committer_finish(cfs_committer *c)
{
    int rc = -EINVAL;
    pthread_mutex_lock(&c->lock);
    while (c->state == HANDED)
        pthread_cond_wait(&c->changed, &c->lock);
    if (c->state == DONE) {
        eventfd_t count;
        eventfd_read(c->event, &count);
        rc = c->result;
        c->state = IDLE;
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

void cfs_committer_free(cfs_committer *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->quit = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->thread, NULL);
    close(c->event);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c);
}
