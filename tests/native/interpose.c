/* Preloaded by tests (support/interposer.py): pwritev2 and fdatasync that do as the file COMMITFS_SCRIPT says, one word
   a call, and write down what was asked of them in COMMITFS_CALLS.

   Words: "ok"; "short:N" writes no more than N bytes; a number fails with that errno; "interrupt" is EINTR for writes and
   ok for syncs; "refuse" knows no RWF_DSYNC; "again", behind at least one other, begins anew.  Behind the last, all is
   ok. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

static void note(const char *format, ...)
{
    FILE *calls = fopen(getenv("COMMITFS_CALLS"), "a");
    va_list values;
    va_start(values, format);
    vfprintf(calls, format, values);
    va_end(values);
    fclose(calls);
}

/* The word for this call. */
static void next_word(char word[16])
{
    static int asked;
    strcpy(word, "ok");
    FILE *script = fopen(getenv("COMMITFS_SCRIPT"), "r");
    for (int i = 0; i <= asked; i++) {
        if (fscanf(script, "%15s", word) != 1) {
            strcpy(word, "ok");
        } else if (strcmp(word, "again") == 0) {
            rewind(script);
            if (fscanf(script, "%15s", word) != 1)
                abort();
            asked = 0;
            break;
        }
    }
    fclose(script);
    asked++;
}

ssize_t pwritev2(int fd, const struct iovec *pieces, int count, off_t offset, int flags)
{
    ssize_t (*real)(int, const struct iovec *, int, off_t, int) = dlsym(RTLD_NEXT, "pwritev2");
    size_t size = 0;
    for (int i = 0; i < count; i++)
        size += pieces[i].iov_len;
    note("write %zu at %lld%s\n", size, (long long)offset, flags & RWF_DSYNC ? " dsync" : "");
    char word[16];
    next_word(word);
    if (strncmp(word, "short:", 6) == 0) {
        size_t most = (size_t)atoi(word + 6);
        struct iovec less[64];
        memcpy(less, pieces, (size_t)count * sizeof *less);
        int taken = 0;
        for (; taken < count && most > 0; taken++) {
            if (less[taken].iov_len > most)
                less[taken].iov_len = most;
            most -= less[taken].iov_len;
        }
        return taken ? real(fd, less, taken, offset, flags) : 0;
    }
    if (strcmp(word, "interrupt") == 0) {
        errno = EINTR;
        return -1;
    }
    if (strcmp(word, "refuse") == 0) {
        if (flags & RWF_DSYNC) {
            errno = EOPNOTSUPP;
            return -1;
        }
    } else if (strcmp(word, "ok") != 0) {
        errno = atoi(word);
        return -1;
    }
    return real(fd, pieces, count, offset, flags);
}

ssize_t pwritev64v2(int fd, const struct iovec *pieces, int count, off_t offset, int flags)
{
    return pwritev2(fd, pieces, count, offset, flags);
}

int fdatasync(int fd)
{
    int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
    note("sync\n");
    char word[16];
    next_word(word);
    if (word[0] >= '0' && word[0] <= '9') {
        errno = atoi(word);
        return -1;
    }
    return real(fd);
}
