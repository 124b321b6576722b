"""Numbers to text: progress on the terminal and tables; works without TVM and torch."""

from tvmfuse.report.progress import Progress
from tvmfuse.report.tables import format_report, format_table

__all__ = ["Progress", "format_report", "format_table"]
