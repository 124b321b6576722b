"""The loop with a fake clock-free measurer, and once with the real child."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace

import pytest
from tvm.s_tir import Schedule

from tvmfuse.database import TuningLog
from tvmfuse.errors import MeasureError
from tvmfuse.tuning.measure import Failure, LocalMeasurer, Measured
from tvmfuse.tuning.search import Templates
from tvmfuse.tuning.task import as_main, make_task
from tvmfuse.tuning.tuner import Budget, tune

TWENTY = Budget(trials=20)


class FakeMeasurer:
    """Answers at once; ``answer(n)`` gives the n-th result of its life."""

    restarts = drifts = 0

    def __init__(self, answer=lambda n: Measured(1e-3 / n, (1e-3 / n,))):
        self.answer, self.count, self.closed, self.keys = answer, 0, False, []

    def register(self, key, module, tolerance=None):
        pass

    def measure(self, key, modules, best_s=None):
        for index in range(len(modules)):
            self.count += 1
            self.keys.append(key)
            yield index, self.answer(self.count)

    def close(self):
        self.closed = True


class Progress:
    """Keeps what it is told."""

    def __init__(self):
        self.calls, self.warnings = [], []

    def tuning(self, *args):
        self.calls.append(args)

    def warn(self, text):
        self.warnings.append(text)


@pytest.fixture
def run(tmp_path, machine, matmul, templates):
    """Run ``tune`` on one small task with a log of its own, which outlives the call."""

    def go(measurer=None, budget=TWENTY, **options):
        task = options.pop("task", None) or make_task("matmul", matmul(), weight=3)
        options.setdefault("templates", templates)
        with TuningLog.open(tmp_path / "test", machine, write=True) as log:
            result = tune([task], log, measurer or FakeMeasurer(), machine, budget, **options)
            return result, len(log), log.task_state(task.key)

    return go


def test_run_spends_its_trials_and_logs_every_success(run):
    progress, measurer = Progress(), FakeMeasurer()
    result, records, state = run(measurer, progress=progress)
    assert (result.trials, records, measurer.count) == (20, 20, 20)
    assert state.complete and state.trials == 20 and measurer.closed
    (best,) = result.best.values()
    assert best.seconds == pytest.approx(1e-3 / 20) and best.variant == 0
    assert not result.interrupted and result.trials_per_s > 0
    name, done, total, best_ms, _, _ = progress.calls[-1]
    assert (name, done, total) == ("matmul", 20, 20) and best_ms == pytest.approx(1 / 20)


@pytest.mark.parametrize("trials", [20, 5])
def test_second_run_with_no_larger_ask_measures_nothing(run, trials):
    first, *_ = run()
    result, records, _ = run(budget=Budget(trials=trials))
    assert (result.trials, result.skipped, records) == (0, 1, 20)
    assert result.best == first.best and result.trials_per_s == 0.0


def test_larger_ask_measures_the_difference_and_nothing_twice(run, tmp_path):
    run()
    result, records, state = run(budget=Budget(trials=30))
    assert result.trials == 10 and records == 30 and state.trials == 30
    lines = (tmp_path / "test" / "database_tuning_record.json").read_text().splitlines()
    assert len({json.dumps(json.loads(line)[1][0]) for line in lines}) == 30


def test_retune_continues_a_complete_task(run):
    run()
    result, records, _ = run(budget=Budget(trials=12), retune=True)
    assert result.trials == 12 and records == 32


def test_should_stop_keeps_everything_and_the_next_run_continues(run):
    measurer = FakeMeasurer()
    result, records, state = run(measurer, should_stop=lambda: measurer.count >= 7)
    assert result.interrupted and (result.trials, records) == (7, 7)
    assert not state.complete and state.trials == 7
    result, records, state = run()
    assert (result.trials, records) == (13, 20) and state.complete


def test_keyboard_interrupt_in_the_measurer_keeps_the_partial_round(run):
    def answer(n):
        if n == 4:
            raise KeyboardInterrupt
        return Measured(1e-3, (1e-3,))

    result, records, state = run(FakeMeasurer(answer))
    assert result.interrupted and records == 3 and not state.complete


def test_first_ctrl_c_ends_tuning_after_the_candidate(run):
    def answer(n):
        if n == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return Measured(1e-3, (1e-3,))

    handler = signal.getsignal(signal.SIGINT)
    result, records, state = run(FakeMeasurer(answer))
    assert result.interrupted and records == 4 and not state.complete
    assert signal.getsignal(signal.SIGINT) is handler


def test_two_interrupts_in_a_row_abort_but_lose_no_record(run):
    def answer(n):
        if n == 4:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return Measured(1e-3, (1e-3,))

    handler, measurer = signal.getsignal(signal.SIGINT), FakeMeasurer(answer)
    with pytest.raises(KeyboardInterrupt):
        run(measurer)
    assert measurer.closed and signal.getsignal(signal.SIGINT) is handler
    result, records, _ = run()
    assert result.trials == 17 and records == 20


def test_plateau_ends_a_task_before_its_budget(run):
    constant = FakeMeasurer(lambda n: Measured(1e-3, (1e-3,)))
    result, _, state = run(constant, Budget(trials=1000))
    assert 1 + 3 <= result.trials <= 1 + 3 * 16 and state.complete


def test_all_candidates_failing_ends_without_a_best(run):
    result, records, state = run(
        FakeMeasurer(lambda n: Failure("run", "boom")), Budget(trials=1000)
    )
    assert result.best == {} and records == 0 and state.best_us is None
    assert result.failures == {"run": result.trials} and result.trials < 100


def test_measure_error_comes_through_and_records_stay(run):
    def answer(n):
        if n == 3:
            raise MeasureError("no luck")
        return Measured(1e-3, (1e-3,))

    with pytest.raises(MeasureError):
        run(FakeMeasurer(answer))
    result, records, _ = run(budget=Budget(trials=4))
    assert records == 4 and result.trials == 2


def test_no_default_is_reported_and_the_search_goes_on(run, templates):
    def broken(func, hardware):
        raise RuntimeError("no idea how")

    progress = Progress()
    result, *_ = run(
        budget=Budget(trials=8), progress=progress, templates=Templates(broken, templates.space)
    )
    assert result.trials == 8
    assert any("no idea how" in text for text in progress.warnings)


def test_wrong_answers_are_reported(run):
    progress = Progress()
    run(FakeMeasurer(lambda n: Failure("wrong_answer", "far off")), progress=progress)
    assert any("far off" in text for text in progress.warnings)


def test_slow_variant_gets_its_default_only(run, matmul):
    task = make_task("matmul", matmul(), variants=(matmul(16, 32, 32),))
    slow = {"first": None}

    class TwoSpeeds(FakeMeasurer):
        def measure(self, key, modules, best_s=None):
            slow["first"] = slow["first"] or key
            for index, _ in super().measure(key, modules, best_s):
                seconds = 2e-3 if key == slow["first"] else 1e-3 / self.count
                yield index, Measured(seconds, (seconds,))

    measurer = TwoSpeeds()
    result, *_ = run(measurer, task=task)
    assert measurer.keys.count(slow["first"]) == 1
    assert result.best[task.key].variant == 1


def test_time_budget_of_nothing_measures_nothing(run):
    result, records, _ = run(budget=Budget(seconds=0.0))
    assert (result.trials, records) == (0, 0)


@pytest.mark.parametrize("bad", [{"trials": -1}, {"seconds": -1.0}, {"seconds": float("nan")}])
def test_budget_refuses_nonsense(bad):
    with pytest.raises(ValueError, match="must not be negative"):
        Budget(**bad)


def test_faulty_space_is_dropped_and_reported(run, templates):
    def space(func, hardware):
        """Its loops vanish under one of the two decisions, so that its trace cannot replay."""
        faulty = Schedule(func)
        c, d = faulty.get_sblock("c"), faulty.get_sblock("d")
        tile = faulty.sample_categorical([1, 4], [0.5, 0.5], decision=1)
        outer, _ = faulty.split(faulty.get_loops(d)[0], [None, tile])
        faulty.compute_at(c, outer)
        faulty.parallel(faulty.get_loops(c)[0])
        return [*templates.space(func, hardware), faulty]

    progress = Progress()
    result, *_ = run(progress=progress, templates=Templates(templates.default, space))
    assert result.trials == 20
    assert any("space" in text for text in progress.warnings)


def test_real_child_end_to_end(run, machine, matmul):
    task = replace(make_task("matmul", matmul()), tolerances=(1e-5,))
    with LocalMeasurer(machine) as measurer:
        result, records, _ = run(measurer, Budget(trials=17), task=task)
    assert result.trials == 17 and records >= 17 - sum(result.failures.values()) > 0
    assert "wrong_answer" not in result.failures


def test_task_names_and_hashes(matmul):
    task = make_task("a", matmul(), weight=2)
    assert task.flops == 2 * 16 * 32 * 16 + 16 * 32
    assert len(task.key) == 16 and task.key == make_task("b", matmul()).key
    with pytest.raises(ValueError, match="weight"):
        make_task("a", matmul(), weight=0)
    with pytest.raises(ValueError, match="tolerances"):
        make_task("a", matmul(), tolerances=(None, 1e-3))
    with pytest.raises(ValueError, match="one PrimFunc"):
        as_main(type(task.module)({}))
