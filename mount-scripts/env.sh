# Sourced by tests/run and mount-scripts/try: makes what they run in, once.
#
#   need_programs build|tests   Debian packages: installed when that can be done, else named in one line
#   need_python                 sets $PY to an interpreter that has commitfs and its tools
#
# COMMITFS_PYTHON=/path/to/python names an interpreter that has everything already.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
ROOT=$PWD

say() { printf '%s\n' "$*" >&2; }

# The packages that are missing, by what they bring: names differ where it is there under another.
missing_packages() {
    local line probe package
    while read -r package probe; do
        eval "$probe" >/dev/null 2>&1 || printf '%s ' "$package"
    done <<END
fuse3 command -v fusermount3
gcc command -v gcc
libc6-dev echo '#include <stdio.h>' | gcc -E -
pkg-config command -v pkg-config
libfuse3-dev pkg-config --exists fuse3
liblz4-dev pkg-config --exists liblz4
python3 find_python
python3-venv "\$(find_python)" -c 'import ensurepip, venv'
python3-dev "\$(find_python)" -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")'
END
    [ "$1" = tests ] || return 0
    while read -r package probe; do
        command -v "$probe" >/dev/null || printf '%s ' "$package"
    done <<END
attr setfattr
dash dash
git git
rsync rsync
sqlite3 sqlite3
strace strace
vim vim
END
}

find_python() {
    local name
    for name in python3 python3.11 python3.12 python3.13 python3.14 /usr/bin/python3; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    return 1
}

need_programs() {
    local missing
    missing=$(missing_packages "$1")
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "Installing $missing"
        # shellcheck disable=SC2086
        quietly install_packages $missing || true
        missing=$(missing_packages "$1")
        [ -n "$missing" ] || return 0
    fi
    say "commitfs: first install ${missing% } (names of Debian packages)"
    return 1
}

install_packages() {
    apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

# What a command prints is shown only when it fails.
quietly() {
    local output
    output=$("$@" 2>&1) || { say "$output"; return 1; }
}

# The environment is made anew only when something it was made from has changed.  Everything the
# build needs lives in it too, so that to build again needs no network.
need_python() {
    if [ -n "${COMMITFS_PYTHON:-}" ]; then
        PY=$COMMITFS_PYTHON
        return
    fi
    local stamp=.venv/made-from now
    PY=$ROOT/.venv/bin/python
    now=$(cat pyproject.toml setup.py mount-scripts/env.sh commitfs/native/*.[ch] commitfs/native/build_*.py |
        sha256sum; printf '%s' "$ROOT")
    if [ -x "$PY" ] && [ "$(cat $stamp 2>/dev/null)" = "$now" ] && "$PY" -c 'import commitfs.native' 2>/dev/null; then
        return
    fi
    say "Building commitfs in .venv"
    quietly make_environment || {
        say "commitfs: the environment could not be made, see above"
        return 1
    }
    printf '%s' "$now" >$stamp
}

# What is needed is installed by itself first, each package built with what it asks for; then commitfs is
# built with what is there.
make_environment() {
    rm -f .venv/made-from
    "$PY" -c '' || "$(find_python)" -m venv --clear .venv || return
    "$PY" -c '
import tomllib
with open("pyproject.toml", "rb") as file:
    page = tomllib.load(file)
needed = page["build-system"]["requires"] + page["project"]["dependencies"]
print(*needed, "wheel", *page["project"]["optional-dependencies"]["dev"], sep="\n")' >.venv/needed || return
    "$PY" -m pip install -r .venv/needed && "$PY" -m pip install --no-build-isolation --no-deps -e .
}
