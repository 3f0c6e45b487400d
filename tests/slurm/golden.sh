#!/bin/bash

# Parameters
#SBATCH --account=lab
#SBATCH --constraint=h200
#SBATCH --cpus-per-task=16
#SBATCH --exclusive
#SBATCH --gres=gpu:4
#SBATCH --job-name=onefold
#SBATCH --mem=204800MB
#SBATCH --no-kill
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output='FOLDER/%j_0_log.out'
#SBATCH --partition=gpu
#SBATCH --qos=high
#SBATCH --requeue
#SBATCH --reservation='my res'
#SBATCH --signal=USR2@90
#SBATCH --time=1560
#SBATCH --wckey=submitit

# setup
module load cuda/12
export NCCL_DEBUG=WARN

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output 'FOLDER/%j_%t_log.out' --no-kill --cpus-per-task=16 PYTHON -P -u -m submitit.core._submit 'FOLDER'
