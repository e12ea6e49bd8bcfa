#!/usr/bin/env bash
# Train on a Slurm cluster. Arguments are settings of pufferfish-run. Start it in the repository, with .venv on a shared disk:
#   sbatch --nodes 2 --gpus-per-node 8 --time 12:00:00 scripts/slurm.sh model=resnet50 method=pufferfish batch_size=16
# batch_size is per rank: 2 x 8 ranks with 16 images each give the global batch of 256 that the paper's learning rate assumes.
# Starts one torchrun per node, with the rendezvous on the first node. PROCESSES: ranks per node (default: one per GPU).
# Two minutes before the time limit the run writes a checkpoint and stops. Submit the same command again to continue.
#SBATCH --job-name=pufferfish
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --signal=TERM@120
#SBATCH --output=slurm-%j.log
set -euo pipefail
cd "$SLURM_SUBMIT_DIR"  # sbatch runs a copy of this file from elsewhere
PATH=$PWD/.venv/bin:$PATH
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
port=$((20000 + SLURM_JOB_ID % 10000))  # one port per job, in case jobs share a node
srun torchrun --shutdown-timeout 110 \
  --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "${PROCESSES:-auto}" \
  --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "${nodes[0]}:$port" \
  -m pufferfish_bench "$@"
