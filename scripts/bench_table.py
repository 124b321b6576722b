"""Numbers of ``bench.py``: statistics of the rounds, ratios, and the tables made of them."""

from __future__ import annotations

from statistics import median
from typing import Any

WRONG_ABOVE = 1e-2  # relative to the largest magnitude of eager's answer
DISTURBED_ABOVE = 0.1  # share of the machine's CPU time that went to other processes in a turn


def percentile(values: list[float], percent: float) -> float:
    """Percentile with linear interpolation between neighbours."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def summarize(rounds_ms: dict[int, list[float]]) -> dict[str, Any]:
    """Latency keys of one system from its samples by round."""
    samples_ms = [ms for taken in rounds_ms.values() for ms in taken]
    return {
        "median_ms": median(samples_ms),
        "p10_ms": percentile(samples_ms, 10),
        "p90_ms": percentile(samples_ms, 90),
        "rounds": len(rounds_ms),
        "calls": len(samples_ms),
        "round_medians_ms": {str(r): median(taken) for r, taken in rounds_ms.items()},
    }


def usable(result: dict[str, Any]) -> bool:
    """Whether a system was measured and answered rightly."""
    return "median_ms" in result and not result.get("wrong")


def best_peer(peers: dict[str, dict[str, Any]]) -> str | None:
    """The fastest peer with a right answer, by median; None where there is none."""
    return min(
        (name for name, result in peers.items() if usable(result)),
        key=lambda name: peers[name]["median_ms"],
        default=None,
    )


def ratio(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float | None]:
    """Our latency over theirs: of the medians, and the median over the rounds both ran in."""
    mine, other = ours["round_medians_ms"], theirs["round_medians_ms"]
    by_round = [mine[r] / other[r] for r in mine if r in other]
    return {
        "of_medians": ours["median_ms"] / theirs["median_ms"],
        "median_by_round": median(by_round) if by_round else None,
    }


def compare(tvmfuse: dict[str, Any], peers: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Entry of one model: the results and tvmfuse's ratios to its peers, null where unmeasured."""
    best = best_peer(peers)
    ratios = {
        name: ratio(tvmfuse, result)
        for name, result in peers.items()
        if usable(tvmfuse) and usable(result)
    }
    to_best = ratios.get(best or "", {})
    return {
        "tvmfuse": tvmfuse,
        "peers": peers,
        "best_peer": best,
        "ratio_to_best_peer": to_best.get("of_medians"),
        "ratio_to_best_peer_by_round": to_best.get("median_by_round"),
        "ratios": ratios,
    }


HEADER = ("system", "median ms", "p10-p90", "x best peer", "peak MiB", "+MiB", "compile s", "error")


def _mib(value: int | None) -> str:
    return "?" if value is None else f"{value / 2**20:.0f}"


def _row(result: dict[str, Any], label: str, best_ms: float | None) -> tuple[str, ...]:
    for kind in ("missing", "failed"):
        if kind in result:
            return (label, kind, *[""] * (len(HEADER) - 3), result[kind])
    times = f"{result['median_ms'] / best_ms:.2f}" if best_ms else ""
    compile_s = result["compile_s"]
    error = f"{result['max_rel_err']:.1e}"
    return (
        label,
        f"{result['median_ms']:.2f}",
        f"{result['p10_ms']:.2f}-{result['p90_ms']:.2f}",
        times,
        _mib(result["peak_memory_bytes"]),
        _mib(result["peak_memory_increase_bytes"]),
        "?" if compile_s is None else f"{compile_s:.1f}",
        error + (" WRONG" if result["wrong"] else ""),
    )


def table(entry: dict[str, Any]) -> list[tuple[str, ...]]:
    """Header and rows of one model, tvmfuse first, then its peers from fast to slow."""
    if "failed" in entry:
        return [HEADER, ("(model)", "failed", *[""] * (len(HEADER) - 3), entry["failed"])]
    peers = entry["peers"]
    best = entry["best_peer"]
    best_ms = peers[best]["median_ms"] if best else None
    ordered = sorted(peers, key=lambda name: peers[name].get("median_ms", float("inf")))
    rows = [("tvmfuse", entry["tvmfuse"]), *[(name, peers[name]) for name in ordered]]
    return [HEADER, *[_row(r, r.get("label", name), best_ms) for name, r in rows]]


def disturbance(entry: dict[str, Any]) -> str:
    """A sentence on turns during which other processes used the CPUs; empty if there were none."""
    systems = [entry.get("tvmfuse", {}), *entry.get("peers", {}).values()]
    measured = [s for s in systems if "median_ms" in s]
    turns = sum(s["rounds"] for s in measured)
    disturbed = sum(s.get("disturbed_rounds", 0) for s in measured)
    if not disturbed:
        return ""
    return (
        f"Noise: in {disturbed} of {turns} turns other processes used more than "
        f"{DISTURBED_ABOVE:.0%} of the CPUs."
    )


def as_text(rows: list[tuple[str, ...]]) -> str:
    """Plain table with aligned columns; the last column is left as long as it is."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER) - 1)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return "\n".join(lines)


def as_markdown(result: dict[str, Any]) -> str:
    """The whole result: how it was measured, then one table a model."""
    machine = result["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items() if v)
    parts = [
        f"{machine['date']}, {machine['cpu']}, {machine['threads']} of {machine['cores']} threads, "
        f"{result['dtype']}; {versions}.",
        f"`{machine['command']}`",
        "Latency of one call; +MiB is the peak over the bare interpreter with NumPy; compile is "
        "from nothing to the first answer; error is against eager, relative to its largest "
        "magnitude.",
    ]
    for name, entry in result["models"].items():
        rows = table(entry)
        lines = ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in rows]
        lines.insert(1, "|---" + "|---:" * (len(HEADER) - 2) + "|---|")
        inputs = ", ".join(entry.get("inputs", []))
        parts.append(f"### {name} {inputs}".rstrip() + "\n\n" + "\n".join(lines))
        if note := disturbance(entry):
            parts.append(note)
    return "\n\n".join(parts) + "\n"
