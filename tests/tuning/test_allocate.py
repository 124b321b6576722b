"""Plain arithmetic: who gets the next trials, and when a task is done."""

from __future__ import annotations

import math

from tvmfuse.tuning.allocate import Arm, TaskState, next_task, peak_flops


def _task(best_s=1e-3, weight=1, flops=1e8, gains=()):
    arm = Arm(best_s=best_s, trials=1, gains=list(gains))
    return TaskState(weight, flops, [arm], list(gains))


def test_heavier_task_comes_first():
    assert next_task([_task(weight=1), _task(weight=5)]) == 1


def test_task_far_from_the_peak_comes_before_one_at_it():
    slow, fast = _task(best_s=4e-3), _task(best_s=1e-3, weight=4)
    assert peak_flops([slow, fast]) == 1e11
    assert next_task([fast, slow]) == 1


def test_gains_keep_a_task_going():
    stuck, moving = _task(gains=(0.1, 0.0, 0.0)), _task(gains=(0.1, 0.2, 0.2))
    assert next_task([stuck, moving]) == 1


def test_plateau_finishes_and_one_good_round_does_not():
    assert _task(gains=(0.5, 0.0, 0.0, 0.009)).finished
    assert not _task(gains=(0.5, 0.0, 0.02, 0.0)).finished
    assert next_task([_task(gains=(0.0, 0.0, 0.0))]) is None


def test_slow_variant_is_finished_and_a_near_one_gets_fewer_trials():
    task = TaskState(1, 1e8, [Arm(0, best_s=1.0), Arm(1, best_s=1.2), Arm(2, best_s=1.4)])
    task.arms[2].trials = 1
    for _ in range(30):
        task.arms[task.next_arm()].trials += 10
    first, second, third = (arm.trials for arm in task.arms)
    assert first > second > 0 and third == 1


def test_rules_come_after_the_templates_and_leave_when_out_of_reach():
    ours, rules = Arm(best_s=1e-3, trials=1), Arm(rules=True)
    task = TaskState(1, 1e8, [ours, rules])
    assert task.open_arms() == [ours]
    ours.exhausted = True
    assert task.open_arms() == [rules] and task.next_arm() == 1
    rules.trials, rules.best_s = 8, 1.2e-3
    assert task.open_arms() == [rules]
    rules.best_s = 1.4e-3
    assert task.finished


def test_note_round_measures_gain_against_the_task():
    a, b = Arm(best_s=1.0), Arm(1, best_s=1.1)
    task = TaskState(1, 1e8, [a, b])
    b.best_s = 1.05
    task.note_round(b, 1.0)
    assert b.gains == [0.0] and a.gains == []
    a.best_s = 0.5
    task.note_round(a, 1.0)
    assert a.gains == [0.5] and task.gains == [0.0, 0.5]
    assert TaskState(1, 1.0, [Arm()]).best_s == math.inf


def test_task_that_never_ran_has_a_finite_guess():
    task = TaskState(2, 1e9, [Arm()])
    assert task.total_s() == 2.0 and task.expected_gain(0.0) == 1.0
