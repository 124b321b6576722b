"""A wrong kernel, fold, layout and a stale record are each named by the level they belong to."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

from tvmfuse.choose import choose_kernels
from tvmfuse.database import TuningLog
from tvmfuse.frontend.import_model import import_module
from tvmfuse.graph import array_of
from tvmfuse.passes import fold_batch_norm, pipeline
from tvmfuse.passes.relax_tools import constant
from tvmfuse.schedules import default_schedule
from tvmfuse.tuning.task import as_main


def test_nothing_planted_nothing_found(right):
    levels = right.report.levels
    assert right.report.passed, right.report.failures()
    assert set(levels) == {"model", "layer", "kernel"}
    layer, kernel = levels["layer"]["example"], levels["kernel"]["all"]
    assert layer.checked >= 4 and layer.checked + layer.skipped == len(right.model.manifest.layers)
    assert layer.max_rel_err < 2e-6
    assert kernel.checked == len(right.kernels) and kernel.skipped == 0
    assert set(right.report.seconds) == set(levels)


def _ending_wrong(func):
    """The same kernel with another end: what a broken schedule might leave."""
    text = tvm.ir.save_json(func)
    assert '"tirx.tanh"' in text
    return tvm.ir.load_json(text.replace('"tirx.tanh"', '"tirx.sigmoid"'))


def test_wrong_kernel_is_named_by_kernel_and_layer(kit, tmp_path):
    def plant(groups, choices):
        group = next(g for g in groups if "T.tanh" in g.kernels[0].script())
        choice = choices[group.name]
        wrong = default_schedule(_ending_wrong(group.kernels[choice.variant]), kit.HARDWARE)
        choices[group.name] = dataclasses.replace(choice, kernel=wrong.mod["main"], origin="mine")
        plant.kernel = "kernel_" + group.name

    report = kit.compiled(tmp_path / "a", choose=plant).report
    assert not report.passed
    assert "first diverging layer" in report.levels["layer"]["example"].reason
    assert "'tanh'" in report.levels["layer"]["example"].reason
    reason = report.levels["kernel"][plant.kernel].reason
    assert "scheduled by mine" in reason and "its own unscheduled form" in reason
    assert not report.levels["model"]["example"].passed
    assert report.failures()[0].startswith("kernel")


def test_wrong_fold_is_named_by_the_layer_alone(kit, tmp_path, monkeypatch):
    folder = fold_batch_norm._Folder._cls
    real = folder._into_producer
    monkeypatch.setattr(
        folder, "_into_producer", lambda self, x, axis, s, t: real(self, x, axis, s, t * 0.5)
    )
    report = kit.compiled(tmp_path / "a").report
    reason = report.levels["layer"]["example"].reason
    assert "'relu'" in reason and "worst at" in reason and "conftest.py" in reason
    assert "so its algorithm, a pass, a rule or the import is at fault" in reason
    assert all(c.passed for c in report.levels["kernel"].values())
    assert not report.levels["model"]["example"].passed


def test_wrong_layout_is_named_by_the_layer_that_reads_it(kit, tmp_path):
    """Channels-last pixels flattened as they lie: the product reads the features in wrong order."""

    def lower(work):
        low = pipeline.lowering(work, kit.HARDWARE)[0]
        return kit.replace(low, module=_permute_weight(low.module))

    report = kit.compiled(tmp_path / "a", lower=lower).report
    reason = report.levels["layer"]["example"].reason
    assert "'linear'" in reason and "self.fc(" in reason
    assert not report.levels["model"]["example"].passed


def _permute_weight(mod):
    """The weight of the product as if its input were channels last."""

    @relax.expr_functor.mutator
    class Permuted(relax.expr_functor.PyExprMutator):
        def visit_generic_const_(self, const):
            values = array_of(const)
            if values is None or values.ndim != 2 or values.shape[0] != 400:
                return const
            return constant(values.reshape(16, 25, -1).transpose(1, 0, 2).reshape(400, -1))

    mod = mod.clone()
    mod["main"] = Permuted(mod).visit_expr(mod["main"])
    return mod


def test_stale_record_is_told_at_the_kernel_level(kit, tmp_path):
    """A log holds the trace of another kernel under this one's name, as after a change of ours."""

    def stale(groups, choices):
        here, there = groups[0], groups[-1]
        kernels = [as_main(g.kernels[choices[g.name].variant]) for g in (here, there)]
        trace = default_schedule(kernels[1]["main"], kit.HARDWARE).trace
        with TuningLog.open(tmp_path / "log", kit.HARDWARE, True) as log:
            log.commit(kernels[0], trace, [1e-6])
        with TuningLog.open(tmp_path / "log", kit.HARDWARE, False) as log:
            choices.update(choose_kernels(groups, log, kit.HARDWARE))
        assert choices[here.name].origin != "log"

    report = kit.compiled(tmp_path / "a", choose=stale).report
    assert report.passed, report.failures()
    note = report.levels["kernel"]["all"].note
    assert "does not apply to its own workload" in note and "--retune" in note


@pytest.mark.parametrize(
    ("mean", "variance", "weight"),
    [(1e4, 1e-12, 1.0), (0.0, 0.0, -2.0), (-3.0, 1e12, 1e-3), (5.0, 1.0, 0.0), (1e-30, 1e-30, 3e3)],
)
def test_extreme_batch_norm_statistics_are_folded_right(kit, tmp_path, mean, variance, weight):
    work = kit.workload()
    net = copy.deepcopy(work.reference)
    with torch.no_grad():
        net.bn.running_mean[::2] = mean
        net.bn.running_var[::2] = variance
        net.bn.weight[::2] = weight
    report = kit.compiled(tmp_path / "a", work=import_module(net, work.example_inputs)).report
    assert report.passed, report.failures()


def test_only_the_first_layer_is_blamed(kit, right):
    """The levels agree on one layer although all behind it differ too."""
    from tvmfuse.verify.layers import check_layers

    work = right.workload
    other = kit.workload()
    with torch.no_grad():
        other.reference.point.weight.mul_(1.01)  # shared with the program of ``other``
    found = check_layers(right.model, other, work.example_inputs)
    diverging = [r.node for r in found.results if r.reason]
    assert found.first_diverging is not None and found.first_diverging.node == diverging[0]
    assert "tanh" in diverging[0]
    assert np.isfinite(found.first_diverging.error)
