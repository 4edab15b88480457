"""Object code for the CPU, by way of LLVM IR text and llvmlite."""
