"""pyproject.toml says the truth about the tree, and the package's verbs are lazy."""

import re
from pathlib import Path

import pytest

import tvmfuse
from tvmfuse import schedules

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def packages():
    listed = re.search(r"^packages = \[(.*?)^\]", PYPROJECT, re.S | re.M).group(1)
    return set(re.findall(r'"([^"]+)"', listed))


def test_every_package_is_listed():
    found = set()
    for folder, prefix in (
        (ROOT / "tvmfuse", "tvmfuse"),
        (ROOT / "schedules", "tvmfuse.schedules"),
    ):
        for path in folder.rglob("__init__.py"):
            found.add(".".join([prefix, *path.parent.relative_to(folder).parts]))
    assert packages() == found | {"tvmfuse.tuning_logs"}


def test_versions_agree():
    assert f'version = "{tvmfuse.__version__}"' in PYPROJECT
    assert f"## [{tvmfuse.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_schedules_are_inside_the_package():
    assert schedules.__name__ == "tvmfuse.schedules"
    assert Path(schedules.__file__).parent == ROOT / "schedules"


def test_public_verbs_are_listed_and_unknown_ones_refused():
    assert {"load", "compile", "tune", "verify_artifact"} <= set(dir(tvmfuse))
    with pytest.raises(AttributeError, match="no attribute 'complie'"):
        tvmfuse.complie  # noqa: B018


@pytest.mark.parametrize("verb", tvmfuse.__all__)
def test_every_public_verb_resolves(verb):
    pytest.importorskip("tvm")
    assert getattr(tvmfuse, verb) is not None


def test_readme_names_one_test_command():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(re.findall(r"<!-- test -->\n```sh\n[^\n]+\n```", readme)) == 1
