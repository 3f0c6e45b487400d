"""Data sets, their partition over clients, and the shard a client trains on."""
