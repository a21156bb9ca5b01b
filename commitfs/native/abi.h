/* Changes with every change of a prototype or of a struct that build_ffi.py declares: a module built from other
   sources than the Python beside it must not load. */
#ifndef CFS_ABI_H
#define CFS_ABI_H

#define CFS_ABI 4

static inline int cfs_abi(void)
{
    return CFS_ABI;
}

#endif
