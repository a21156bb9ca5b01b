"""Builds commitfs.native._native with cffi in API mode (run by setup.py).

Environment: COMMITFS_SANITIZE=address,undefined builds for the sanitizers; COMMITFS_WERROR=1 makes
warnings errors (for CI: a newer compiler must not break an installation).
"""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

from cffi import FFI

HERE = Path("commitfs/native")
PARTS = ["cache", "committer", "crc32c", "durable", "node", "walk"]
PARTS += ["new_file", "tree", "tree_build", "tree_delete", "tree_put"]
HEADERS = ["abi", "bytes", "cache", "committer", "crc32c", "durable", "new_file", "node", "tree", "walk"]

PROTOTYPES = """
int cfs_abi(void);

uint32_t cfs_crc32c(uint32_t seed, const void *data, size_t size);
uint32_t cfs_crc32c_tables(uint32_t seed, const void *data, size_t size);
int cfs_crc32c_hardware(void);

#define CFS_AT_SYNC ...
struct iovec { void *iov_base; size_t iov_len; ...; };
int cfs_sync(int fd);
int cfs_write_all(int fd, struct iovec *pieces, int count, int64_t offset);
int cfs_write_durable(int fd, struct iovec *pieces, int count, int64_t offset);
int cfs_write_all_one(int fd, const void *data, size_t size, int64_t offset);
int cfs_write_durable_one(int fd, const void *data, size_t size, int64_t offset);

typedef struct cfs_committer cfs_committer;
cfs_committer *cfs_committer_new(int *error);
int cfs_committer_fileno(const cfs_committer *c);
int cfs_committer_submit(cfs_committer *c, int fd, struct iovec *pieces, int count, int64_t offset);
int cfs_committer_finish(cfs_committer *c);
void cfs_committer_free(cfs_committer *c);

typedef struct {
    uint64_t offset, store, session, commit_id, commit_offset;
    uint32_t chain, unknown_flags;
    uint64_t need, records, commits;
    ...;
} cfs_walk_state;
void cfs_walk(const uint8_t *window, size_t size, uint64_t base, cfs_walk_state *state);

#define CFS_STORED_MAX ...
#define CFS_ENCODED_MAX ...
#define CFS_BODY_MAX ...
#define CFS_NODES_MIN ...
#define CFS_TOUCH_MAX ...
typedef ... LZ4_stream_t;
LZ4_stream_t *LZ4_createStream(void);
int LZ4_freeStream(LZ4_stream_t *stream);
size_t cfs_node_encode(unsigned level, const uint8_t *body, size_t length, unsigned count, uint8_t *out,
                       LZ4_stream_t *lz4);

typedef struct { size_t bytes, count; ...; } cfs_nodes;
cfs_nodes *cfs_nodes_new(size_t limit);
void cfs_nodes_free(cfs_nodes *nodes);
int cfs_nodes_load(cfs_nodes *nodes, uint64_t offset, uint32_t length, uint32_t level, uint32_t crc,
                   const uint8_t *stored, size_t size);
int cfs_nodes_entries(cfs_nodes *nodes, uint64_t offset, uint32_t length, uint32_t level, uint32_t crc,
                      uint8_t *out);
void cfs_nodes_forget(cfs_nodes *nodes, uint64_t offset);

typedef struct { uint64_t offset; uint32_t length, level, crc; ...; } cfs_pointer;
typedef struct {
    cfs_pointer root, need;
    int changed;
    uint64_t edits, estimate;
    uint8_t out[...];
    uint8_t *run;
    ...;
} cfs_tree;
cfs_tree *cfs_tree_new(cfs_nodes *nodes, uint64_t offset, uint32_t length, uint32_t level, uint32_t crc);
void cfs_tree_free(cfs_tree *t);
int cfs_tree_get(cfs_tree *t, const uint8_t *key, size_t key_size);
int cfs_tree_put(cfs_tree *t, const uint8_t *key, size_t key_size, const uint8_t *value, size_t value_size);
int cfs_tree_apply(cfs_tree *t, const uint8_t *edits, size_t size);
int cfs_tree_touch(cfs_tree *t, const uint8_t *keys, size_t size);
int cfs_tree_delete(cfs_tree *t, const uint8_t *key, size_t key_size);
int cfs_tree_forward(cfs_tree *t, const uint8_t *key, size_t key_size, int beyond, const uint8_t *high,
                     size_t high_size);
int cfs_tree_backward(cfs_tree *t, const uint8_t *key, size_t key_size, const uint8_t *low, size_t low_size);
int cfs_tree_build_begin(cfs_tree *t);
int cfs_tree_build_store(cfs_tree *t, uint64_t offset);
int64_t cfs_tree_build_run(cfs_tree *t, uint64_t offset, size_t ahead);
void cfs_tree_build_finish(cfs_tree *t);

#define CFS_EXTENT_MAX ...
#define CFS_NEW_FILE_PATH ...
typedef struct {
    uint64_t offset;
    int64_t clock_ns, size;
    uint64_t cookie;
    uint32_t uid, pid, commit, ino, folder, truncated;
} cfs_new_file_numbers;
int64_t cfs_new_file(cfs_tree *t, const cfs_new_file_numbers *numbers,
                     const uint8_t *program, size_t program_size,
                     const uint8_t *path, size_t path_size, size_t name_size,
                     const uint8_t *inode, size_t inode_size, const uint8_t *parent, size_t parent_size,
                     const uint8_t *data, size_t data_size);
"""

NEEDED = "on Debian and Ubuntu: apt install gcc pkg-config liblz4-dev python3-dev"


def flags_of_lz4() -> tuple[list[str], list[str]]:
    """What the compiler and the linker need for liblz4, or the end of the build with one line that says
    what to install."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if not shutil.which(compiler):
        raise SystemExit(f"commitfs: no C compiler ({compiler}) found; {NEEDED}")
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        raise SystemExit(f"commitfs: Python.h not found; {NEEDED}")
    found: list[list[str]] = []
    for what in ("--cflags", "--libs"):
        try:
            asked = subprocess.run(["pkg-config", what, "liblz4"], capture_output=True, text=True, check=True)
        except FileNotFoundError:
            raise SystemExit(f"commitfs: pkg-config not found; {NEEDED}") from None
        except subprocess.CalledProcessError:
            raise SystemExit(f"commitfs: liblz4 and its header not found; {NEEDED}") from None
        found.append(asked.stdout.split())
    return found[0], found[1]


def make() -> FFI:
    compile_lz4, link_lz4 = flags_of_lz4()
    compile_args = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-pthread", "-fvisibility=hidden"]
    compile_args += ["-Wall", "-Wextra", "-Wconversion", *compile_lz4]
    link_args = ["-pthread", *link_lz4]
    if os.environ.get("COMMITFS_WERROR"):
        compile_args.append("-Werror")
    sanitize = os.environ.get("COMMITFS_SANITIZE")
    if sanitize:
        compile_args += [f"-fsanitize={sanitize}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
        compile_args += ["-g", "-O1"]
        link_args.append(f"-fsanitize={sanitize}")

    builder = FFI()
    builder.cdef(PROTOTYPES)
    builder.set_source(
        "commitfs.native._native",
        # The pragma is for what cffi writes below it, which is not made for these warnings.
        "\n".join(f'#include "{name}.h"' for name in HEADERS)
        + '\n#pragma GCC diagnostic ignored "-Wconversion"\n#pragma GCC diagnostic ignored "-Wextra"\n',
        sources=[str(HERE / f"{name}.c") for name in PARTS],
        depends=[str(HERE / f"{name}.h") for name in HEADERS],
        include_dirs=[str(HERE)],
        extra_compile_args=compile_args,
        extra_link_args=link_args,
    )
    return builder


ffibuilder = make()
