"""What a test asks about a process that it did not start itself."""

import time
from pathlib import Path


def state(pid):
    """State letter of a process: T for stopped, Z for dead and not yet waited for."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def ends(pid, within_s=10.0):
    """Whether the process is gone or dead in time: a signal takes effect after it was sent."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if state(pid) == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False
