/*
 * The floor under a store commit: the same bytes over zeros laid earlier, and a sync, with
 * nothing round them.
 *
 *   bare MODE PATH RECORD BYTES COUNT
 *
 * MODE is fdatasync (pwritev, fdatasync) or dsync (pwritev2 with RWF_DSYNC).  Each of COUNT
 * rounds writes RECORD + BYTES bytes as two buffers behind the bytes of the round before.
 * Prints the nanoseconds of every round, one a line.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Written and synced, not just allocated: the rounds must change neither size nor blocks. */
static void lay_zeros(int fd, size_t length)
{
    static const char zeros[1 << 16];

    for (size_t at = 0; at < length;) {
        size_t part = length - at < sizeof zeros ? length - at : sizeof zeros;
        ssize_t done = pwrite(fd, zeros, part, (off_t)at);
        if (done <= 0)
            fail("pwrite");
        at += (size_t)done;
    }
    if (fsync(fd))
        fail("fsync");
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fputs("usage: bare fdatasync|dsync PATH RECORD BYTES COUNT\n", stderr);
        return 2;
    }
    int flags = strcmp(argv[1], "dsync") == 0 ? RWF_DSYNC : 0;
    size_t record = strtoul(argv[3], NULL, 10), bytes = strtoul(argv[4], NULL, 10);
    size_t count = strtoul(argv[5], NULL, 10), size = record + bytes;
    char *data = malloc(size);
    int64_t *took = calloc(count, sizeof *took);
    int fd = open(argv[2], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (!data || !took || fd < 0)
        fail("setting up");
    lay_zeros(fd, size * count);
    for (size_t i = 0; i < count; i++) {
        struct iovec parts[2] = {{data, record}, {data + record, bytes}};
        memset(data, (int)(i % 251 + 1), size);
        int64_t start = now();
        if (pwritev2(fd, parts, 2, (off_t)(i * size), flags) != (ssize_t)size)
            fail("pwritev2");
        if (!flags && fdatasync(fd))
            fail("fdatasync");
        took[i] = now() - start;
    }
    for (size_t i = 0; i < count; i++)
        printf("%lld\n", (long long)took[i]);
    return 0;
}
