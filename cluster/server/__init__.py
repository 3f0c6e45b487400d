"""The server over ranks: Ray actors on GPUs or cores, joined by torch.distributed."""
