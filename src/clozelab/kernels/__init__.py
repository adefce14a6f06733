"""Several passes over memory made one, written by hand for a GPU.

Each file has one: its Triton kernels, the operator that autograd and the compiler see, and how it
differs from the plain arithmetic it stands for (by nothing but rounding and the dropout drawn).
Kernels have the name of their file in their own: a profile shows nothing else.
Importing this package imports neither torch nor triton.
"""
