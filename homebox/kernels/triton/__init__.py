"""How is it computed on a GPU? Kernels in Triton, each behind the interface that the reference kernel has, too."""
