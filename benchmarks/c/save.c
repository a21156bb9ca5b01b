/*
 * A program that saves files, the same on every filesystem it is pointed at.
 *
 *   save [-n SAVES] [-b BYTES] [-r RUN] [-t THREADS] [-p PAUSE_US] [-f FIRST] [-o create|trunc|inplace]
 *        [-s STOP] END:DIR ...
 *
 * END is what ends a save: close, or fsync (then close).  Every DIR is a side; SAVES saves are
 * made on each, RUN at a time on one side before the next has its turn, forwards and backwards
 * in turn, so that what disturbs the machine disturbs all sides.  create makes a new file each
 * time; trunc opens an existing one with O_TRUNC; inplace writes over it.  With -t, THREADS
 * threads share the SAVES of the single side.  With -s, it stops early once the file STOP is there.
 *
 * Prints "wall SIDE NS", and for each save "SIDE TOTAL OPEN WRITE END", in nanoseconds.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_SIDES 4

struct took {
    int64_t total, open, write, end;
};

struct side {
    const char *dir;
    int fsync;
    int64_t wall;
    size_t done;
    struct took *took;
};

struct job {
    struct side *side;
    size_t from, to;
};

static size_t saves = 1000, bytes = 2048, run = 20, threads, first;
static unsigned pause_us;
static int extra_flags = O_CREAT | O_EXCL;
static const char *stop;

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

/* No two saves have the same bytes, and none compresses. */
static void fill(uint64_t *words, size_t count, uint64_t seed)
{
    uint64_t x = seed * 0x9e3779b97f4a7c15u + 0x7f4a7c15u;
    for (size_t i = 0; i < count; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        words[i] = x;
    }
}

static void save(struct side *side, size_t i, uint64_t *data)
{
    char path[4096];
    struct took *took = &side->took[i];

    snprintf(path, sizeof path, "%s/f%08zu", side->dir, first + i);
    fill(data, bytes / 8, (uint64_t)now() ^ i);
    int64_t start = now();
    int fd = open(path, O_WRONLY | O_CLOEXEC | extra_flags, 0644);
    if (fd < 0)
        fail(path);
    int64_t opened = now();
    if (write(fd, data, bytes) != (ssize_t)bytes)
        fail("write");
    int64_t written = now();
    if (side->fsync && fsync(fd))
        fail("fsync");
    if (close(fd))
        fail("close");
    int64_t ended = now();
    *took = (struct took){ended - start, opened - start, written - opened, ended - written};
}

static void *work(void *argument)
{
    struct job *job = argument;
    uint64_t *data = malloc(bytes + 8);

    if (!data)
        fail("malloc");
    for (size_t i = job->from; i < job->to && !(stop && access(stop, F_OK) == 0); i++) {
        save(job->side, i, data);
        if (!threads)
            job->side->done = i + 1;
        if (pause_us)
            usleep(pause_us);
    }
    free(data);
    return NULL;
}

static void in_threads(struct side *side)
{
    pthread_t *thread = calloc(threads, sizeof *thread);
    struct job *job = calloc(threads, sizeof *job);

    if (!thread || !job)
        fail("calloc");
    int64_t start = now();
    for (size_t t = 0; t < threads; t++) {
        job[t] = (struct job){side, saves * t / threads, saves * (t + 1) / threads};
        if (pthread_create(&thread[t], NULL, work, &job[t]))
            fail("pthread_create");
    }
    for (size_t t = 0; t < threads; t++)
        pthread_join(thread[t], NULL);
    side->wall = now() - start;
    side->done = saves;
    free(thread);
    free(job);
}

static void in_runs(struct side *sides, size_t count)
{
    size_t turn = 0;

    for (size_t from = 0; from < saves; from += run, turn++) {
        size_t to = from + run < saves ? from + run : saves;
        for (size_t k = 0; k < count; k++) {
            struct side *side = &sides[turn % 2 ? count - 1 - k : k];
            struct job job = {side, from, to};
            int64_t start = now();
            work(&job);
            side->wall += now() - start;
        }
    }
}

static void usage(void)
{
    fputs("usage: save [-n saves] [-b bytes] [-r run] [-t threads] [-p pause_us] [-f first] "
          "[-o create|trunc|inplace] [-s stop] close|fsync:DIR ...\n", stderr);
    exit(2);
}

int main(int argc, char **argv)
{
    struct side sides[MAX_SIDES] = {0};
    size_t count = 0;

    for (int option; (option = getopt(argc, argv, "n:b:r:t:p:f:o:s:")) != -1;) {
        switch (option) {
        case 'n': saves = strtoul(optarg, NULL, 10); break;
        case 'b': bytes = strtoul(optarg, NULL, 10); break;
        case 'r': run = strtoul(optarg, NULL, 10); break;
        case 't': threads = strtoul(optarg, NULL, 10); break;
        case 'p': pause_us = (unsigned)strtoul(optarg, NULL, 10); break;
        case 'f': first = strtoul(optarg, NULL, 10); break;
        case 's': stop = optarg; break;
        case 'o':
            extra_flags = strcmp(optarg, "create") == 0 ? O_CREAT | O_EXCL
                        : strcmp(optarg, "trunc") == 0 ? O_TRUNC : 0;
            break;
        default: usage();
        }
    }
    for (int i = optind; i < argc; i++, count++) {
        char *colon = strchr(argv[i], ':');
        if (!colon || count == MAX_SIDES)
            usage();
        sides[count].dir = colon + 1;
        sides[count].fsync = strncmp(argv[i], "fsync", 5) == 0;
        sides[count].took = calloc(saves, sizeof *sides[count].took);
        if (!sides[count].took)
            fail("calloc");
    }
    if (!count || !run || (threads && count != 1))
        usage();
    if (threads)
        in_threads(&sides[0]);
    else
        in_runs(sides, count);
    for (size_t k = 0; k < count; k++) {
        printf("wall %zu %lld\n", k, (long long)sides[k].wall);
        for (size_t i = 0; i < sides[k].done; i++) {
            struct took *t = &sides[k].took[i];
            printf("%zu %lld %lld %lld %lld\n", k, (long long)t->total, (long long)t->open,
                   (long long)t->write, (long long)t->end);
        }
    }
    return 0;
}
