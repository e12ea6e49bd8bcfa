#!/usr/bin/env bash
# A run on a Slurm cluster; all words are settings, as for pufferfish-run. From the repository, with .venv on a shared disk:
#   sbatch --nodes 2 --gpus-per-node 8 --time 12:00:00 scripts/slurm.sh model=resnet50 method=pufferfish batch_size=16
# batch_size is each rank's: 2 x 8 ranks of 16 images are the 256 that the paper's learning rate is made for.
# One torchrun a node; they meet on the first. PROCESSES (default auto: one for each GPU) is the number of ranks a node.
# Two minutes before the time is up the run writes a checkpoint and stops; the same command goes on from there.
#SBATCH --job-name=pufferfish
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --signal=TERM@120
#SBATCH --output=slurm-%j.log
set -euo pipefail
cd "$SLURM_SUBMIT_DIR"  # this file itself was copied away by sbatch
PATH=$PWD/.venv/bin:$PATH
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
port=$((20000 + SLURM_JOB_ID % 10000))  # another one for each job on a shared node
srun torchrun --shutdown-timeout 110 \
  --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "${PROCESSES:-auto}" \
  --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "${nodes[0]}:$port" \
  -m pufferfish_bench "$@"
