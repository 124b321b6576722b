"""The GPU probe survives a driver that crashes, hangs or is absent."""

import pytest

from tvmfuse.hardware.gpu import probe_gpus


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os; os.abort()", "ended with code"),
        ("import time; time.sleep(60)", "did not answer within 0.5 s"),
        ("print('not json')", "no readable answer"),
        ('print(\'{"reason": "no driver"}\')', "no driver"),
    ],
)
def test_a_bad_driver_gives_a_reason(code, reason):
    timeout_s = 0.5 if "sleep" in code else 20
    probe = probe_gpus(timeout_s, code)
    assert probe.gpus == ()
    assert reason in probe.reason


def test_found_gpus_are_described():
    said = '{"gpus": [{"name": "Tesla T4", "major": 7, "minor": 5, "sms": 40}], "reason": ""}'
    (found,) = probe_gpus(20, f"print({said!r})").gpus
    assert str(found) == "Tesla T4 (sm_75)"
    assert found.figures == {"sms": 40}


def test_the_real_probe_gives_gpus_or_a_reason():
    probe = probe_gpus()
    assert bool(probe.gpus) != bool(probe.reason)
