"""The kernels for processors: C++ in `native/`, compiled on first use on the machine that runs them."""
