"""What there is to compute on: cores, memory, GPUs, and the Ray cluster over them."""
