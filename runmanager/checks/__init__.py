"""What is checked before runs are executed: changes of code, trials and resuming."""
