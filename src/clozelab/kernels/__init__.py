"""Triton kernels that fuse several passes over memory into one.

A module has one operator: its Triton kernels, the custom operator that autograd and the compiler
see, and a plain function that calls it. Each computes what the plain layers do, but for rounding
and the random numbers of dropout. A kernel's name begins with that of its module, because a profile
shows nothing else. Importing this package imports neither torch nor triton.

Names in the kernels are those of the FlashAttention papers and of Triton's tutorials:

- `offs_m`, `offs_n`, `offs_d`: offsets of a tile's rows (in attention: queries), columns (keys) and
  elements of a head; a value whose name ends in `_m` or `_n` has one element for each of these.
- `BLOCK_M`, `BLOCK_N`: the size of a tile. A block, without a size, is a packed sequence.
- `d_x`, `dx`: the gradient of the loss with respect to x; in a kernel the pointer to all of it, and
  a tile of it. Likewise `seed_ptr` and `seed`, `lse` and `lse_m`.
- `HAS_…`: known when the kernel is compiled; what is missing costs nothing.
"""
