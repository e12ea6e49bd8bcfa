"""What the trainer uses: checkpoints, snapshots, precision, schedules, optimizers, triggers, timing, observers, signals."""
