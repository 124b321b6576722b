"""A report as text: every figure that is there, and nothing for one that is not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def format_table(rows: Sequence[Mapping[str, Any]], columns: Iterable[str] | None = None) -> str:
    """Align rows under their keys.

    Parameters
    ----------
    rows
        One mapping a row; a key that a row lacks leaves its cell empty.
    columns
        Keys to show, in order; by default all, in order of first appearance.

    Returns
    -------
    str
        Header and rows without a trailing newline; empty without rows. Numbers are aligned to
        the right.
    """
    if not rows:
        return ""
    names = list(columns or dict.fromkeys(key for row in rows for key in row))
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    right = [all(_is_number(row.get(name)) for row in rows) for name in names]
    lines = []
    for line in [names, *cells]:
        padded = (
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        )
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def format_report(report: Mapping[str, Any]) -> str:
    """Format the report of a run (the keys of ``report.json``) as text.

    Parameters
    ----------
    report
        As ``tvmfuse.api`` returns it; keys may be missing, unknown ones are left to the JSON.

    Returns
    -------
    str
        Lines without a trailing newline.
    """
    lines = [
        _line("model", _joined(report, ("model", "target", "dtype"))),
        _line("artifact", report.get("output", "")),
        _line("latency", _latency(report)),
        _line("memory", _memory(report.get("peak_memory_bytes"))),
        _line("kernels", _kernels(report)),
        _line("gpu", _gpu(report.get("gpu"))),
        _line("tuning", _tuning(report)),
        _line("verified", _verified(report.get("verify"))),
        _line("seconds", _pairs(report.get("wall_s"), "{:.1f}")),
    ]
    parts = report.get("parts") or []
    if parts:
        lines += [
            f"parts ({len(parts)}{_in_torch(report)}):",
            format_table(parts, ("part", "runs_in", "operators", "kernels", "ms")),
            *(f"  part {part['part']}: {why}" for part in parts for why in part["why"]),
        ]
    lines += measured_verdicts(report.get("verdicts") or [])
    refused = report.get("refused") or []
    if refused:
        lines += [f"refused fusions ({len(refused)}):", format_table(refused, ("rule", "reason"))]
    return "\n".join(line for line in lines if line)


def _in_torch(report: Mapping[str, Any]) -> str:
    runs = any(part["runs_in"] == "PyTorch" for part in report["parts"])
    return f"; PyTorch takes {report['eager_ms']:.3g} ms of a run" if runs else ""


def measured_verdicts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Groups that were measured against their parts; what is said of those that were split."""
    split = [row for row in rows if not row["fused"]]
    lines = []
    if rows:
        lines.append(f"measured against their parts: {len(rows)} groups, {len(split)} split again")
    return lines + [f"  split at {row['member']}: {row['rule']}: {row['said']}" for row in split]


def format_diagnosis(found: Mapping[str, Any], rows: int) -> str:
    """Format what ``tvmfuse.diagnose`` found: the kernels that take longest, and the rest in sum.

    Parameters
    ----------
    found
        As ``tvmfuse.diagnose.diagnose`` returns it.
    rows
        Kernels to show.
    """
    speeds, kernels = found["speeds"], found["kernels"]
    shown = [
        {
            "kernel": row["kernel"].removeprefix("kernel_group_"),
            "operators": " ".join(row["ops"]),
            "calls": row["calls"],
            "us": round(row["us"], 1),
            "time %": round(100 * row["share"], 1),
            "GFLOP/s": None if row["gflops"] is None else round(row["gflops"], 1),
            "GB/s": None if row["gbytes"] is None else round(row["gbytes"], 1),
            "of machine %": _of_machine(row),
            "bound": row["bound"],
        }
        for row in kernels[:rows]
    ]
    rest = kernels[rows:]
    lines = [
        f"{found['artifact']}: {found['kernels_us'] / 1e3:.3g} ms in "
        f"{sum(row['calls'] for row in kernels)} kernel calls, {found['threads']} threads, median "
        f"of {found['calls']} calls",
        f"machine, measured now: {speeds['flops'] / 1e9:.0f} GFLOP/s (NumPy's matrix product), "
        f"{speeds['bytes'] / 1e9:.0f} GB/s (copying memory; caches are faster)",
        format_table(shown),
    ]
    if rest:
        lines.append(f"and {len(rest)} more: {sum(row['us'] for row in rest):.1f} us")
    return "\n".join(lines)


def _of_machine(row: Mapping[str, Any]) -> float | None:
    if row["of_flops"] is None:
        return None
    return round(100 * max(row["of_flops"], row["of_bytes"]), 1)


def _line(label: str, text: Any) -> str:
    return f"{label:<9} {text}" if text else ""


def _joined(report: Mapping[str, Any], keys: Iterable[str]) -> str:
    return ", ".join(str(report[key]) for key in keys if report.get(key))


def _latency(report: Mapping[str, Any]) -> str:
    latency = report.get("latency_ms") or {}
    if latency.get("median") is None:
        return ""
    text = f"{latency['median']:.3g} ms median"
    if latency.get("p10") is not None and latency.get("p90") is not None:
        text += f" ({latency['p10']:.3g} to {latency['p90']:.3g})"
    if latency.get("kind"):
        text += f", {latency['kind']}"
    eager_ms = (report.get("baseline_ms") or {}).get("eager")
    if eager_ms:
        ratio = eager_ms / latency["median"] if latency["median"] else float("inf")
        text += f"; eager PyTorch {eager_ms:.3g} ms, {ratio:.2f} times as long"
    return text


def _memory(peak_bytes: float | None) -> str:
    return "" if peak_bytes is None else f"{peak_bytes / 2**20:.1f} MiB at the peak"


def _kernels(report: Mapping[str, Any]) -> str:
    kernels = report.get("kernels") or {}
    if "before" not in kernels or "after" not in kernels:
        return ""
    text = f"{kernels['before']} operators became {kernels['after']} kernels"
    fused = _pairs(report.get("fusion"), "{}")
    return f"{text} ({fused})" if fused else text


def _gpu(gpu: Mapping[str, Any] | None) -> str:
    if not gpu:
        return ""
    kernels = gpu["kernels"]
    registers = max((k["registers"] for k in kernels), default=0)
    spills = sum(k["spill_bytes"] > 0 for k in kernels)
    return (
        f"{gpu['name']} ({gpu['arch']}), {gpu['state']}; {len(kernels)} device kernels, at most "
        f"{registers} registers a thread, {spills} that spill"
    )


def _tuning(report: Mapping[str, Any]) -> str:
    parts = []
    if report.get("trials") is not None:
        parts.append(f"{report['trials']} trials")
        if report["trials"] and report.get("trials_per_s") is not None:
            parts.append(f"{report['trials_per_s']:.1f} trials/s")
    records = report.get("records") or {}
    if records:
        parts.append(f"log: {records.get('hit', 0)} tasks hit, {records.get('missed', 0)} missed")
    return ", ".join(parts)


def _verified(verify: Mapping[str, Any] | None) -> str:
    if not verify or verify.get("passed") is None:
        return ""
    text = "yes" if verify["passed"] else "NO"
    if verify.get("device") == "not run":
        text = f"NOT RUN on the device; on this CPU {text}"
    for key, label in (("max_abs_err", "absolute"), ("max_rel_err", "relative")):
        if verify.get(key) is not None:
            text += f", largest {label} error {verify[key]:.2g}"
    metric = (verify.get("levels") or {}).get("metric") or {}
    told = [found["note"] for found in metric.values() if found.get("note")]
    said = [verify["note"]] if verify.get("note") else []
    return "\n          ".join([text, *said, *told, *(verify.get("failures") or [])])


def _pairs(values: Mapping[str, Any] | None, pattern: str) -> str:
    shown = ((key, value) for key, value in (values or {}).items() if value is not None)
    return ", ".join(f"{key} {pattern.format(value)}" for key, value in shown)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
