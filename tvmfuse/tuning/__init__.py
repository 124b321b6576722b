"""Search over schedules."""
