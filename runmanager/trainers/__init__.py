"""Integrations: Lightning, Hugging Face, MLflow, Weights & Biases."""
