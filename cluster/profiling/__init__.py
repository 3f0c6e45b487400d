"""What a client needs of the machine, measured on one real step of its training."""
