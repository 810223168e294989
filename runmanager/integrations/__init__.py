"""Results in other tools: MLflow, Weights & Biases."""
