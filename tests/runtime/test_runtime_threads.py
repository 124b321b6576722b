"""Each model keeps its own thread count, wherever and however often it is called from."""

import os
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from tvmfuse.errors import OptionError
from tvmfuse.runtime import load

needs_two_cpus = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="one CPU: there is only one legal thread count"
)


def _threads_in_call(model):
    """Pool threads that TVM would use for a kernel of this model, asked where it runs."""
    return model._threads.run(model._threads._pool_threads)


@needs_two_cpus
def test_counts_hold_side_by_side(tiny, artifact, x):
    one, two = load(artifact, threads=1), load(artifact, threads=2)
    want = tiny.expected(x, tiny.random_weights())
    for model, count in [(one, 1), (two, 2), (one, 1), (two, 2)]:
        assert model.threads == count
        assert _threads_in_call(model) == count
        np.testing.assert_allclose(model(x)["y"], want, rtol=1e-5, atol=1e-4)


@needs_two_cpus
def test_counts_hold_from_other_threads(artifact):
    one, two = load(artifact, threads=1), load(artifact, threads=2)
    seen = {}

    def ask(name, model):
        seen[name] = _threads_in_call(model)

    for name, model in (("one", one), ("two", two)):
        thread = threading.Thread(target=ask, args=(name, model))
        thread.start()
        thread.join()
    assert seen == {"one": 1, "two": 2}


def test_default_count_is_what_the_process_may_use(artifact):
    from tvmfuse.hardware import usable_cores

    assert load(artifact).threads == usable_cores()


def test_affinity_of_the_caller_stays(artifact, x):
    before = os.sched_getaffinity(0)
    load(artifact, threads=1)(x)
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("count", [0, -1, 10_000])
def test_refused_counts(artifact, count):
    with pytest.raises(OptionError, match=rf"threads={count}, but this process may use"):
        load(artifact, threads=count)


def test_many_python_threads(tiny, artifact):
    model = load(artifact)
    weights = tiny.random_weights()
    faults = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(50):
            x = rng.standard_normal((2, tiny.SIZE), dtype=np.float32)
            if not np.allclose(model(x)["y"], tiny.expected(x, weights), rtol=1e-4, atol=1e-3):
                faults.append(seed)

    callers = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for caller in callers:
        caller.start()
    work(99)
    for caller in callers:
        caller.join()
    assert faults == []


def test_dead_callers_leave_no_threads(artifact, x):
    model = load(artifact)

    def call():
        thread = threading.Thread(target=model, args=(x,))
        thread.start()
        thread.join()

    call()
    before = len(os.listdir("/proc/self/task"))
    for _ in range(20):
        call()
    # join() returns a moment before the system has forgotten the thread.
    for _ in range(100):
        left = len(os.listdir("/proc/self/task"))
        if left <= before:
            break
        time.sleep(0.05)
    assert left <= before


def test_dead_models_leave_no_threads(artifact, x):
    def use():
        model = load(artifact)
        thread = threading.Thread(target=model, args=(x,))
        thread.start()
        thread.join()

    use()
    before = len(os.listdir("/proc/self/task"))
    for _ in range(20):
        use()
    # An executor may give its model back a moment after the call returned; then a new one is
    # made beside it, but not twenty.
    assert len(os.listdir("/proc/self/task")) < before + 10


def test_errors_reach_the_calling_thread(artifact):
    from tvmfuse.errors import InputError

    model, caught = load(artifact), []

    def call():
        try:
            model(1)
        except InputError as error:
            caught.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert len(caught) == 1 and "got a int" in caught[0]


def test_forked_child_can_call(artifact):
    code = f"""
    import os, sys, numpy as np, tvmfuse.runtime as runtime
    model = runtime.load({str(artifact)!r})
    x = np.ones((2, 32), np.float32)
    want = model(x)["y"].copy()
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(model(x)["y"], want) else 3)
    _, status = os.waitpid(child, 0)
    assert np.array_equal(model(x)["y"], want)
    sys.exit(os.waitstatus_to_exitcode(status))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], timeout=120, check=False)
    assert done.returncode == 0
