"""Progress: plain lines when piped, throttled; a bar on a terminal."""

import io

import pytest

from tvmfuse.report.progress import Progress, _duration


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def piped():
    clock, stream = Clock(), io.StringIO()
    return Progress(stream, clock=clock), stream, clock


def test_piped_text_is_plain_lines(piped):
    progress, stream, clock = piped
    clock.now_s = 2.5
    progress.stage("import")
    progress.note("weights are random")
    progress.warn("no log for this target")
    assert stream.getvalue() == (
        "[   2.5 s] import\n           weights are random\n  warning: no log for this target\n"
    )


def test_tuning_lines_are_throttled_and_the_last_is_kept(piped):
    progress, stream, clock = piped
    for second in range(12):
        clock.now_s = float(second)
        progress.tuning("conv2d", second + 1, 12, 0.5, 1.0, 11.0 - second)
    assert [line.split("/")[0].strip() for line in stream.getvalue().splitlines()] == [
        "1", "6", "11",
    ]  # fmt: skip
    progress.close()
    assert stream.getvalue().splitlines()[-1].strip() == (
        "12/12 trials, best 0.5 ms, 1.0 trials/s, 0 s left: conv2d"
    )


def test_unknown_best_total_and_time_are_said_so(piped):
    progress, stream, _ = piped
    progress.tuning("dense", 3, None, None, 0.25, None)
    assert stream.getvalue().strip() == "3 trials, best none yet, 0.2 trials/s: dense"


def test_a_terminal_gets_a_bar_and_whole_lines_above_it():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    with Progress(stream) as progress:
        progress.tuning("conv2d[x]", 1, 4, 0.5, 2.0, 65.0)
        progress.note("a [note] with brackets")
        progress.tuning("conv2d[x]", 4, 4, 0.4, 2.0, 0.0)
    text = stream.getvalue()
    assert "\x1b[" in text
    assert "a [note] with brackets" in text
    assert "conv2d[x]" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (59.4, "59 s"), (59.6, "1:00 min"), (605, "10:05 min"), (7260, "2:01 h")],
)
def test_duration(seconds, text):
    assert _duration(seconds) == text
