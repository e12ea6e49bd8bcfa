#!/usr/bin/env bash
# Start this machine's ranks of a run. Arguments are settings of pufferfish-run.
#   one machine:       PROCESSES=8 scripts/torchrun.sh model=resnet18_distributed method=pufferfish
#   several machines:  NODES=2 NODE=0 MASTER=first.example PROCESSES=8 scripts/torchrun.sh model=resnet50 method=pufferfish batch_size=16
#                      run this on every machine, with NODE=0 on MASTER, then 1, 2, ...; all need the same run_dir on a shared disk
# batch_size is per rank: these two recipes of the paper assume global batches of 8 x 256 and 16 x 16 images.
# PROCESSES: ranks on this machine (default: one per GPU, or per core without a GPU). PORT: default 29500.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PATH=$root/.venv/bin:$PATH
nodes=(--standalone)
if [ "${NODES:-1}" -gt 1 ]; then
  nodes=(
    --nnodes "$NODES" --node-rank "${NODE:?set NODE to the number of this machine, counting from 0}"
    --master-addr "${MASTER:?set MASTER to the address of machine 0}" --master-port "${PORT:-29500}"
  )
fi
exec torchrun --shutdown-timeout 110 "${nodes[@]}" --nproc-per-node "${PROCESSES:-auto}" -m pufferfish_bench "$@"
