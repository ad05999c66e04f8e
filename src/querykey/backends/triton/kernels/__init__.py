"""The GPU kernels, in Triton's language; the files beside this folder start them."""
