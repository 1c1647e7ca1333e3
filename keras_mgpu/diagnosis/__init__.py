"""What `keras-mgpu check` tries on a machine: numbers, copies, overlap, memory, placement."""
