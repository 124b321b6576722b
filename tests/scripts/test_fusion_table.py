"""The fusion table: its arithmetic and page from given figures, and one small model for real."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import fusion_table
from fusion_table import attempt, page, shares


def figures(kernels, moved, memory):
    return {
        "kernels": kernels, "written_bytes": moved // 2, "read_bytes": moved - moved // 2,
        "memory_bytes": memory,
        "fusion": {"vertical": 3, "horizontal": 0, "diagonal": 1, "compound": 0},
    }  # fmt: skip


def result(name, ort):
    return {
        "model": name, "outcome": "built", "target": "test", "seconds": 1.0, "onnxruntime": ort,
        "unfused": figures(10, 8 << 20, 4 << 20), "fused": figures(4, 2 << 20, 3 << 20),
    }  # fmt: skip


ONE = result("one", {"exported": 12, "nodes": 5})
TIE = result("tie", {"exported": 12, "nodes": 4})
NONE = result("none", {"failed": "RuntimeError: no | such operator"})


def test_what_is_saved():
    assert shares(ONE) == {"kernels": 0.6, "bytes": 0.75, "memory": 0.25}


def test_page():
    crashed = {"model": "bad", "outcome": "crashed", "message": "a\nb", "seconds": 1.0}
    text = page([ONE, TIE, NONE, crashed])
    row = "| one | 10 | 4 | -60% | 8.0 | 2.0 | -75% | 4.0 | 3.0 | -25% | 5 | yes |"
    assert row in text
    assert "| 4 | no |" in text  # as many nodes as kernels is not fewer
    assert "On average over 3 models: kernels -60%, bytes moved -75%, memory -25%." in text
    assert "graph has nodes: 1 of 2." in text
    assert "- none, ONNX Runtime: RuntimeError: no \\| such operator" in text
    assert "| bad | crashed: a b |" in text
    assert "| one | 3 | 0 | 1 | 0 |" in text


def test_results_are_kept_and_failed_ones_run_again(tmp_path, monkeypatch):
    asked = []

    def attempt(name, *_):
        asked.append(name)
        return ONE | {"model": name}

    monkeypatch.setattr(fusion_table, "attempt", attempt)
    store = tmp_path / "fusion.json"
    store.write_text(json.dumps([ONE | {"model": "dlrm"}, NONE | {"model": "swin_t"}]))
    given = ["fusion_table.py", "--json", str(store), "--only", "dlrm|swin_t|vit_b_16"]
    monkeypatch.setattr(sys, "argv", given)
    fusion_table.main()
    assert asked == ["vit_b_16"]
    monkeypatch.setattr(sys, "argv", [*given, "--again", "failed"])
    fusion_table.main()
    assert asked == ["vit_b_16", "swin_t"]
    assert [r["model"] for r in json.loads(store.read_text())] == ["vit_b_16", "swin_t", "dlrm"]


@pytest.mark.slow
def test_one_model():
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    found = attempt("dlrm", 600, 8.0, fusion_table._CHILD)
    assert found["outcome"] == "built", found["message"]
    assert 0 < found["fused"]["kernels"] < found["unfused"]["kernels"]
    assert all(0 < share < 1 for share in shares(found).values()), shares(found)
    assert found["onnxruntime"]["nodes"] <= found["onnxruntime"]["exported"]
