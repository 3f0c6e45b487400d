"""``ray start``, without the servers that nobody asks in a run: a node of a cluster.

Its server for Ray clients would listen on a fixed port, and end the node where that is taken.
"""

from cluster.hardware.ray_internals import run_command

if __name__ == "__main__":
    run_command()
