"""Statistics, ratios and tables of scripts/bench.py, without running anything."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from bench_table import (
    as_markdown,
    as_text,
    best_peer,
    compare,
    disturbance,
    percentile,
    summarize,
    table,
)


def measured(*rounds_ms, wrong=False, error=1e-7):
    """A system with these samples, one tuple a round."""
    return {
        "label": "system",
        **summarize(dict(enumerate(map(list, rounds_ms)))),
        "compile_s": 1.0,
        "max_rel_err": error,
        "wrong": wrong,
        "peak_memory_bytes": 3 << 20,
        "peak_memory_increase_bytes": 1 << 20,
    }


def test_percentile_interpolates():
    assert percentile([4.0, 1.0, 3.0, 2.0, 5.0], 50) == 3.0
    assert percentile([0.0, 10.0], 10) == pytest.approx(1.0)
    assert percentile([7.0], 90) == 7.0


def test_summary_is_over_all_calls_and_keeps_the_rounds():
    result = summarize({0: [1.0, 3.0], 2: [5.0]})
    assert result["median_ms"] == 3.0
    assert (result["rounds"], result["calls"]) == (2, 3)
    assert result["round_medians_ms"] == {"0": 2.0, "2": 5.0}


def test_best_peer_is_the_fastest_right_one():
    peers = {
        "slow": measured((9.0,)),
        "wrong": measured((1.0,), wrong=True, error=1.0),
        "fast": measured((4.0,)),
        "absent": {"missing": "not installed"},
    }
    assert best_peer(peers) == "fast"
    assert best_peer({"absent": {"missing": "not installed"}}) is None


def test_ratio_of_medians_differs_from_the_median_by_round():
    # The machine was ten times slower in round 0, for both alike; the peer lost round 2.
    entry = compare(measured((10.0,), (2.0,), (2.0,)), {"peer": measured((20.0,), (4.0,), (5.0,))})
    assert entry["ratio_to_best_peer"] == pytest.approx(2.0 / 5.0)
    assert entry["ratio_to_best_peer_by_round"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    "ours", [{"missing": "no artifact"}, measured((1.0,), wrong=True, error=0.5)]
)
def test_no_ratio_without_a_right_answer_of_ours(ours):
    entry = compare(ours, {"peer": measured((1.0,))})
    assert entry["best_peer"] == "peer"
    assert entry["ratio_to_best_peer"] is None
    assert entry["ratios"] == {}


def test_tables_name_what_is_missing_failed_or_wrong():
    peers = {
        "openvino": {"label": "OpenVINO", "missing": "pip install openvino"},
        "inductor": {"label": "inductor", "failed": "no compiler | found"},
        "eager": measured((1.0,), wrong=True, error=0.5),
    }
    entry = {**compare(measured((2.0,)), peers), "inputs": ["float32[1]"]}
    text = as_text(table(entry))
    assert "pip install openvino" in text and "no compiler" in text and "WRONG" in text
    machine = {"cpu": "C", "cores": 2, "threads": 2, "date": "D", "command": "X", "versions": {}}
    result = {"machine": machine, "dtype": "float32", "models": {"m": entry}}
    markdown = as_markdown(result).splitlines()
    rows = [line.replace("\\|", "") for line in markdown if line.startswith("|")]
    assert len({row.count("|") for row in rows}) == 1  # every row has as many cells
    assert len(rows) == 2 + 1 + len(peers)


def test_a_disturbed_run_says_so_and_a_quiet_one_does_not():
    noisy = {**measured((1.0,), (1.0,)), "disturbed_rounds": 1}
    assert "in 1 of 3 turns" in disturbance(compare(measured((1.0,)), {"eager": noisy}))
    assert disturbance(compare(measured((1.0,)), {"eager": measured((1.0,))})) == ""
    assert disturbance({"failed": "no such model"}) == ""


def test_a_model_that_failed_is_a_row_too():
    assert "no such model" in as_text(table({"failed": "no such model"}))
