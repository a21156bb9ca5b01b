#!/bin/sh
# Back up a folder into a store; every run adds commits, every earlier state stays readable.
#
#   examples/backup.sh FOLDER STORE
#
# Prints the number of the newest commit.  Get a file back as it was then with
#   commitfs cat STORE NUMBER PATH
set -eu
folder=$1 store=$2
commitfs=${COMMITFS:-commitfs}

mountpoint=$(mktemp -d)
trap 'rmdir "$mountpoint"' EXIT
$commitfs mount "$store" "$mountpoint" >&2
trap '$commitfs umount "$mountpoint"; rmdir "$mountpoint"' EXIT

# -1: times are compared to the nanosecond, so that no save within the same second is missed.
rsync -aHX --modify-window=-1 --delete "$folder/" "$mountpoint/"
basename "$(readlink "$mountpoint/.commits/latest")"
