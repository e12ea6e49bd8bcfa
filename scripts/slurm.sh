#!/usr/bin/env bash
# Train on a Slurm cluster. Arguments are settings of pufferfish-run. Start it in the repository, with .venv on a shared disk:
#   sbatch --nodes 2 --gpus-per-node 8 --time 12:00:00 scripts/slurm.sh model=resnet50 method=pufferfish
# The paper's recipes keep their global batch: 256 images for ResNet-50, so 16 on each of 2 x 8 ranks. docs/many-workers.md
# Starts one torchrun per node, with the rendezvous on the first node. PROCESSES: ranks per node (default: one per GPU).
# RESTARTS: how often a failed rank restarts all ranks, from the last checkpoint (default: 3).
# Two minutes before the time limit, and when Slurm preempts the job, the run writes a checkpoint, and the job is queued again.
#SBATCH --job-name=pufferfish
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.log
set -euo pipefail
stopping=
step=
stop() {
  stopping=yes
  if [ -n "$step" ]; then kill -USR1 "$step" 2> /dev/null || true; fi  # srun passes USR1 on to all nodes; TERM would end them at once
}
trap stop USR1 TERM
cd "$SLURM_SUBMIT_DIR"  # sbatch runs a copy of this file from elsewhere
PATH=$PWD/.venv/bin:$PATH
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
port=$((20000 + SLURM_JOB_ID % 10000))  # one port per job, in case jobs share a node
# Slurm 22.05 to 23.11 does not pass --cpus-per-task of sbatch on to srun
srun ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} torchrun --shutdown-timeout 110 --signals-to-handle SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 \
  --max-restarts "${RESTARTS:-3}" \
  --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "${PROCESSES:-auto}" \
  --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "${nodes[0]}:$port" \
  -m pufferfish_bench "$@" &
step=$!
if [ -n "$stopping" ]; then stop; fi
code=0
while :; do
  code=0
  wait "$step" || code=$?
  kill -0 "$step" 2> /dev/null || break  # else a signal has ended the wait, and srun still runs
done
if [ "$code" = 0 ]; then exit; fi
state=$(scontrol show job "$SLURM_JOB_ID" || true)
# A preemption may signal the ranks only, and Slurm does not queue a job again that ends by itself within the grace time.
if [ -z "$stopping" ] && ! [[ $state =~ JobState=PREEMPTED|PreemptTime=[0-9] ]]; then exit "$code"; fi
if [[ $state == *JobState=CANCELLED* ]]; then
  echo "slurm.sh: the job was cancelled; submit the same command to continue from the checkpoint" >&2
elif ! scontrol requeue "$SLURM_JOB_ID"; then
  echo "slurm.sh: the job cannot be queued again; submit the same command to continue from the checkpoint" >&2
fi
exit "$code"
