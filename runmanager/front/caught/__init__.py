"""The modules that a program imports in place of wandb and trackio."""
