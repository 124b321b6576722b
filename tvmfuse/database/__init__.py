"""Tuning logs: what was measured for one target, kept in MetaSchedule's own file format.

A log is the folder ``<log_dir>/<hardware.key>/``. Importing this package imports no TVM.
"""

from tvmfuse.database.files import ESTIMATED, MEASURED, TaskState
from tvmfuse.database.log import Record, TuningLog, task_hash
from tvmfuse.database.tools import clear, distill, merge, status
from tvmfuse.database.verdicts import FusionVerdict

__all__ = [
    "ESTIMATED",
    "MEASURED",
    "FusionVerdict",
    "Record",
    "TaskState",
    "TuningLog",
    "clear",
    "distill",
    "merge",
    "status",
    "task_hash",
]
