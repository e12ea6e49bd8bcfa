"""What the trainer uses: checkpoints, snapshots, precision, schedules, optimizers, triggers, timing, signals, and the
observers of every run (recorder, terminal, pace)."""
