"""The GPU kernels, in Triton's language; the files beside this folder start them.

A pointer's name ends in the axes of its array, all contiguous:

    L  lanes: a batch entry and one of its key heads      C  chunks of CHUNK tokens
    G  query heads of a lane                              B  blocks of STEP tokens
    T  queries                                            S  the STEP tokens of a block
    N  keys                                               P  tiles of the sums of degree 2
    D  entries of a query and of a key                    R  the moments of `sums`, side by side
    M  entries of a value                                 F  features of a recurrent state

A row is one query head of one lane. T, N, blocks and chunks are counted at run time; capital names
without a pointer (G, D, M, CHUNK, STEP, BQ and BK for the queries and keys of a tile) and switches
are compile-time constants.
"""
