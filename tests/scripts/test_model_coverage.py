"""The model sweep: a fixed sample of it, and that it tells its outcomes and limits apart."""

import json
import sys
from pathlib import Path

import pytest

sys.path.extend([str(Path(__file__).parents[2] / "scripts"), str(Path(__file__).parent)])

import model_coverage
from model_coverage import attempt
from processes import ends

# Small ones, so that a sample ends in minutes: attention with a mask, depthwise convolutions with
# squeeze and excite, products over patches and channels in turn, bags of ids.
SAMPLE = ("hf:distilbert-base-uncased", "timm:lcnet_050", "timm:mixer_s32_224", "dlrm")


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_sample(name):
    if ":" in name:
        pytest.importorskip({"hf": "transformers", "timm": "timm"}[name.partition(":")[0]])
    result = attempt(name, 600, 12.0)
    assert result["outcome"] == "right", result["message"]
    assert 0 < result["kernels"]["after"] < result["kernels"]["before"]


def outcome_of(code, timeout_s=60, memory_gib=4.0):
    return attempt("any", timeout_s, memory_gib, code)


def test_the_answer_of_the_process_is_kept():
    result = outcome_of('sum(range(10**7)); print(\'{"outcome": "right"}\')')
    assert result["outcome"] == "right"
    assert result["processor_s"] > 0


def test_a_process_that_dies_is_a_crash():
    result = outcome_of("import os; sys.stderr.write('bad luck'); os._exit(7)")
    assert result["outcome"] == "crashed"
    assert result["message"] == "the process ended with 7: bad luck"


def test_time_of_the_processor_is_limited():
    result = outcome_of("while True: pass", timeout_s=1)
    assert result["outcome"] == "too long"
    assert result["message"] == "over 1 s of the processor"


def test_whoever_sleeps_is_ended_with_what_it_started(monkeypatch, tmp_path):
    monkeypatch.setattr(model_coverage, "_PATIENCE", 1)
    started = tmp_path / "started"
    code = (
        "import subprocess, time\n"
        f"child = subprocess.Popen(['sleep', '600'])\nopen({str(started)!r}, 'w')"
        ".write(str(child.pid))\ntime.sleep(600)"
    )
    result = outcome_of(code, timeout_s=5)
    assert result["message"] == "over 5 s of wall-clock time"
    assert ends(int(started.read_text()))


def test_memory_is_limited():
    result = outcome_of("bytearray(2 * 2**30)", memory_gib=1.0)
    assert result["outcome"] == "crashed"
    assert "MemoryError" in result["message"]


def run_main(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["model_coverage.py", *map(str, arguments)])
    model_coverage.main()


def test_results_are_kept_and_tried_again_by_outcome(monkeypatch, tmp_path):
    kept = tmp_path / "results.json"
    kept.write_text(
        json.dumps(
            [
                {"set": "own", "model": "yolov5n", "outcome": "right", "seconds": 1.0},
                {"set": "own", "model": "yolov5s", "outcome": "too long", "seconds": 1.0},
            ]
        )
    )
    tried = []

    def fake(name, timeout_s, memory_gib):
        tried.append((name, timeout_s, memory_gib))
        return {"outcome": "refused", "message": "a|b\nc", "seconds": 2.0, "processor_s": 3.0}

    monkeypatch.setattr(model_coverage, "attempt", fake)
    page = tmp_path / "models.md"
    run_main(monkeypatch, "--sets", "own", "--json", kept, "--again", "wrong,too long",
             "--timeout", 5, "--memory", 2, "--markdown", page)  # fmt: skip
    assert tried == [("yolov5s", 5, 2.0), ("dlrm", 5, 2.0)]
    assert len(json.loads(kept.read_text())) == 3
    text = page.read_text()
    assert "3 models: 1 right, 2 refused (33.3% right)." in text
    assert "| yolov5n | right |  |  | 1 |  |  |" in text
    assert "| dlrm | refused |  |  | 2 | 3 | a\\|b c |" in text
    assert "Not run" not in text


def test_what_is_not_asked_for_is_kept_and_what_was_not_run_is_named(monkeypatch, tmp_path):
    kept = tmp_path / "results.json"
    wrong = {"set": "own", "model": "yolov5n", "outcome": "wrong", "seconds": 1.0,
             "message": "at /somewhere/site-packages/timm/model.py:3"}  # fmt: skip
    kept.write_text(json.dumps([wrong]))
    monkeypatch.setattr(model_coverage, "attempt", lambda *_: {"outcome": "right", "seconds": 1.0})
    page = tmp_path / "models.md"
    run_main(monkeypatch, "--sets", "own", "--only", "dlrm", "--json", kept, "--again", "wrong",
             "--markdown", page)  # fmt: skip
    assert {r["model"]: r["outcome"] for r in json.loads(kept.read_text())} == {
        "yolov5n": "wrong", "dlrm": "right",
    }  # fmt: skip
    text = page.read_text()
    assert "Not run (1): yolov5s." in text
    assert "| at timm/model.py:3 |" in text


def test_stored_results_make_a_page_and_nothing_is_run(monkeypatch, tmp_path):
    kept, page = tmp_path / "results.json", tmp_path / "models.md"
    kept.write_text(
        json.dumps([{"set": "own", "model": "yolov5n", "outcome": "wrong", "seconds": 1.0}])
    )
    monkeypatch.setattr(model_coverage, "attempt", lambda *_: pytest.fail("it was run"))
    asked = ("--sets", "own", "--json", kept, "--stored", "--markdown", page)
    run_main(monkeypatch, *asked, "--again", "wrong")
    assert "1 models: 1 wrong" in page.read_text()
    assert "Not run (2): yolov5s, dlrm." in page.read_text()
    kept.write_text("[]")
    with pytest.raises(SystemExit, match="has none of the 3 models"):
        run_main(monkeypatch, *asked)


def test_messages_are_kept_without_folders_of_the_machine(monkeypatch, tmp_path):
    kept = tmp_path / "results.json"
    message = "at /somewhere/site-packages/timm/model.py:3"
    answer = {"outcome": "crashed", "seconds": 1.0, "message": message}
    monkeypatch.setattr(model_coverage, "attempt", lambda *_: dict(answer))
    run_main(monkeypatch, "--sets", "own", "--only", "dlrm", "--json", kept)
    assert json.loads(kept.read_text())[0]["message"] == "at timm/model.py:3"


def test_a_pattern_without_a_model_is_said(monkeypatch):
    with pytest.raises(SystemExit, match="no model of own matches"):
        run_main(monkeypatch, "--sets", "own", "--only", "resnet")


def test_a_set_that_is_unknown_is_said():
    with pytest.raises(SystemExit, match="unknown set 'nope'"):
        model_coverage.models_of("nope")
