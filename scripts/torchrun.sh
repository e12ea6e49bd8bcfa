#!/usr/bin/env bash
# Start this machine's ranks of a run. Arguments are settings of pufferfish-run.
#   one machine:       PROCESSES=8 scripts/torchrun.sh model=resnet18_distributed method=pufferfish
#   several machines:  NODES=2 MASTER=first.example PROCESSES=8 scripts/torchrun.sh model=resnet50 method=pufferfish
#                      run this on every machine; MASTER is one of them. Without a shared disk, resume on the same machines
# The paper's recipes keep their global batch: 2,048 images on 8 ranks, 256 on 2 x 8. docs/many-workers.md
# PROCESSES: ranks on this machine (default: one per GPU, or per core without a GPU). PORT: default 29500.
# RESTARTS: how often a failed rank restarts all ranks, from the last checkpoint (default: 0).
# SIGTERM, SIGUSR1 and Ctrl-C: the run writes a checkpoint and ends; the same command continues.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PATH=$root/.venv/bin:$PATH
nodes=(--standalone)
if [ "${NODES:-1}" -gt 1 ]; then
  address=${MASTER:?set MASTER to the address of one of the machines}:${PORT:-29500}
  nodes=(--nnodes "$NODES" --rdzv-id pufferfish --rdzv-backend c10d --rdzv-endpoint "$address")
fi
exec torchrun --shutdown-timeout 110 --signals-to-handle SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 --max-restarts "${RESTARTS:-0}" \
  "${nodes[@]}" --nproc-per-node "${PROCESSES:-auto}" -m pufferfish_bench "$@"
