"""The hardware of a run: cores, memory, GPUs, and the Ray cluster over them."""
