"""Trackers: observers that copy a run into TensorBoard, Weights & Biases or MLflow (conf/tracker)."""
