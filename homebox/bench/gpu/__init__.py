"""What a GPU does with the engine: `scripts/gpu_check`."""
