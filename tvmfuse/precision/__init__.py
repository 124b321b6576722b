"""Numbers: which tensors leave a type's range, and which sums need more than plain addition."""
