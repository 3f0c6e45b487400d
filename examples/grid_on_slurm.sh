#!/bin/sh
# A table of methods, skews and seeds as one Slurm job array; the same command again makes the table.
onefold sweep --grid method=fedavg,fedprox,moon alpha=0.1,0.5 seed=0,1,2 --num-clients 10 --num-large 10 \
    --rounds 5 --slurm --slurm.partition gpu --slurm.gpus-per-node 1 "$@"
