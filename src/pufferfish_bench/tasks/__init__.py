"""One file a task: where batches come from, what the loss is, how it is judged."""
