"""The store: records, walk, recovery, group commit, stages, tree.  Knows nothing of FUSE."""
