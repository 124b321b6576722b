"""From a workload and a plan to one PrimFunc a group."""
