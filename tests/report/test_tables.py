"""Reports as text show each figure that is there, and invent none."""

import subprocess
import sys

from tvmfuse.report.tables import format_report, format_table

REPORT = {
    "model": "resnet50",
    "target": "llvm",
    "dtype": "float32",
    "output": "build/resnet50-llvm",
    "latency_ms": {"median": 20.04, "p10": 19.5, "p90": 21.25, "kind": "measured"},
    "baseline_ms": {"eager": 50.1},
    "peak_memory_bytes": 3 * 2**20,
    "kernels": {"before": 175, "after": 57},
    "fusion": {"vertical": 53, "horizontal": 0},
    "refused": [{"rule": "relu(x)", "reason": "leaks"}],
    "trials": 120,
    "trials_per_s": 9.96,
    "wall_s": {"import": 3.21, "verify": None},
    "verify": {"passed": True, "max_abs_err": 1.5e-6, "max_rel_err": 2e-5},
    "records": {"hit": 20, "missed": 3},
}


def test_full_report():
    text = format_report(REPORT)
    for part in (
        "resnet50, llvm, float32",
        "20 ms median (19.5 to 21.2), measured; eager PyTorch 50.1 ms, 2.50 times as long",
        "3.0 MiB at the peak",
        "175 operators became 57 kernels (vertical 53, horizontal 0)",
        "120 trials, 10.0 trials/s, log: 20 tasks hit, 3 missed",
        "yes, largest absolute error 1.5e-06, largest relative error 2e-05",
        "import 3.2",
        "refused fusions (1):",
        "relu(x)  leaks",
    ):
        assert part in text
    assert "None" not in text


def test_missing_figures_leave_no_line():
    assert format_report({"model": "m", "latency_ms": {}, "verify": None}) == "model     m"
    assert format_report({}) == ""


def test_failed_verification_is_seen():
    assert "verified  NO" in format_report({"verify": {"passed": False}})


def test_table_aligns_numbers_right_and_text_left():
    rows = [{"task": "conv", "ms": 1.23456}, {"task": "a", "ms": 10.0, "more": True}]
    assert format_table(rows) == "task     ms  more\nconv  1.235\na        10  True"


def test_table_without_rows_is_empty():
    assert format_table([]) == ""


def test_report_works_without_tvm_torch_and_rich():
    code = (
        "import sys; from tvmfuse.report import Progress, format_report;"
        "assert not {'tvm', 'torch', 'rich', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
