"""Import: a PyTorch model becomes a Workload."""
