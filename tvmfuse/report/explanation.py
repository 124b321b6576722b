"""What ``tvmfuse explain`` found, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tvmfuse.report.tables import format_table, measured_verdicts

_MIB = 2**20


def _in_halves(answer: Mapping[str, Any]) -> str:
    dtype = answer.get("dtype", "float32")
    return "" if dtype == "float32" else f", products in {dtype}"


def format_explanation(answer: Mapping[str, Any]) -> str:
    """Format the answer of ``tvmfuse.explain.explain``; lines without a trailing newline."""
    limits = answer["limits"]
    ridge = limits["ridge"].get("float32", 0.0)
    lines = [
        f"model    {answer['model']} for {answer['target']}{_in_halves(answer)}",
        f"limits   {limits['name']}: {limits['peak_flops']['float32'] / 1e9:.0f} GFLOP/s float32, "
        f"{limits['dram_bytes_per_s'] / 1e9:.0f} GB/s, ridge {ridge:.1f} FLOP/byte, "
        f"cache {limits['cache_bytes'] / _MIB:.1f} MiB, {limits['registers']} registers",
        *(f"  {key}: {source}" for key, source in limits["sources"].items()),
    ]
    if "graph" in answer:
        lines += _graph(answer["graph"])
    if "fusion" in answer:
        lines += _fusion(answer["fusion"], limits)
    if "why" in answer:
        lines += _why(answer["why"])
    return "\n".join(lines)


def _graph(graph: Mapping[str, Any]) -> list[str]:
    rows = [
        {
            "operator": row["op"],
            "count": row["count"],
            "share_%": round(100 * row["share"], 1),
            "MFLOP": row["flops"] / 1e6,
            "FLOP_%": round(100 * row["flops_share"], 1),
            "MiB": row["bytes"] / _MIB,
            "FLOP/byte": row["flops_per_byte"],
            "compute": row["compute"],
            "memory": row["memory"],
            **({"measured_ms": row["measured_ms"]} if "measured_ms" in row else {}),
        }
        for row in graph["operators"]
    ]
    lines = ["", "operators (compute, memory: how many lie on which side of the ridge):"]
    lines.append(format_table(rows))
    left = graph.get("profile_not_joined_ms") or {}
    if left:
        shown = ", ".join(f"{name} {ms:.3g} ms" for name, ms in left.items())
        lines.append(f"in the profile only: {shown}")
    if graph["regions"]:
        lines += ["compute-heavy regions:", format_table(graph["regions"])]
    if graph["chains"]:
        chains = [{**c, "ops": " ".join(c["ops"])[:80]} for c in graph["chains"]]
        lines += ["bandwidth-bound chains:", format_table(chains)]
    return lines


def _fusion(fusion: Mapping[str, Any], limits: Mapping[str, Any]) -> list[str]:
    counts = ", ".join(f"{k} {v}" for k, v in fusion["counts"].items() if v)
    became = f"{fusion['operators']} operators, {fusion['kernels']} kernels"
    lines = ["", f"fusion   {became} ({counts})"]
    if fusion["feasibility"]:
        lines += ["fused groups:", format_table(_matrix(fusion["feasibility"], limits))]
    lines += measured_verdicts(fusion["verdicts"])
    merged = Counter((m["category"], m["rule"]) for m in fusion["merged"])
    if merged:
        rows = [{"category": c, "rule": r, "count": n} for (c, r), n in merged.most_common()]
        lines += ["merged operators:", format_table(rows)]
    refused = Counter((r["rule"], r["reason"]) for r in fusion["refused"])
    if refused:
        rows = [{"count": n, "rule": r, "reason": w} for (r, w), n in refused.most_common()]
        lines += ["refused:", format_table(rows)]
    return lines


def _matrix(rows: list[dict[str, Any]], limits: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One line for all groups of equal operators and verdict: ranges where they differ."""
    alike: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        key = (tuple(row["ops"]), row["verdict"], row["handed_over_in"], row["bound"])
        alike.setdefault(key, []).append(row)
    return [
        {
            "count": len(group),
            "operators": " ".join(key[0])[:60],
            "verdict": key[1],
            "intermediate_KiB": _range(r["intermediate_bytes"] / 1024 for r in group),
            "else_in": key[2],
            "registers": f"{_range(r['registers'] for r in group)}/{limits['registers']}",
            "FLOP/byte": _range(r["flops_per_byte"] for r in group),
            ">=10": f"{sum(r['above_ten'] for r in group)}/{len(group)}",
            "bound": key[3],
            "instruction": group[0]["instruction"],
            "gain_us": _range(r["estimated_us"]["parts"] - r["estimated_us"]["fused"]
                              for r in group),
            "why": next((r["reason"] for r in group if r["reason"]), ""),
        }
        for key, group in alike.items()
    ]  # fmt: skip


def _range(values: Any) -> str:
    found = sorted(values)
    low, high = f"{found[0]:.3g}", f"{found[-1]:.3g}"
    return low if low == high else f"{low}..{high}"


def _why(why: Mapping[str, Any]) -> list[str]:
    lines = ["", f"rule     {why['rule']} ({why['category']}): fired {why['fired']} times"]
    for row in why["refused"]:
        lines.append(f"  refused {row['count']} times: {row['reason']} (at {', '.join(row['at'])})")
    if why["stopped"]:
        lines.append(f"  {why['stopped']}")
    return lines
