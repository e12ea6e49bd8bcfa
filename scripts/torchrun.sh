#!/usr/bin/env bash
# This machine's part of a run; all words are settings, as for pufferfish-run.
#   one machine:       PROCESSES=8 scripts/torchrun.sh model=resnet18_distributed method=pufferfish
#   several machines:  NODES=2 NODE=0 MASTER=first.example PROCESSES=8 scripts/torchrun.sh model=resnet50 method=pufferfish batch_size=16
#                      the same on each, NODE counting up from 0 on the machine MASTER; all must see the same run_dir
# batch_size is each rank's: 8 x 256 and 16 x 16 images are what the learning rates of these two recipes of the paper are made for.
# PROCESSES is by default auto: one for each GPU, or for each core where there is no GPU. PORT is by default 29500.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PATH=$root/.venv/bin:$PATH
nodes=(--standalone)
if [ "${NODES:-1}" -gt 1 ]; then
  nodes=(
    --nnodes "$NODES" --node-rank "${NODE:?is the number of this machine, from 0}"
    --master-addr "${MASTER:?is the address of machine 0}" --master-port "${PORT:-29500}"
  )
fi
exec torchrun --shutdown-timeout 110 "${nodes[@]}" --nproc-per-node "${PROCESSES:-auto}" -m pufferfish_bench "$@"
