import torch
from torch import nn

from tvmfuse.frontend.locate import node_location, user_frame


def test_user_frame_skips_torch():
    try:
        nn.Linear(4, 3)(torch.zeros(2, 5))
    except RuntimeError as error:
        said = user_frame(error)
    assert "test_locate.py" in said and "nn.Linear(4, 3)" in said


def test_no_frame_no_text():
    assert user_frame(ValueError("never raised")) == ""


def test_node_location_prefers_the_users_file():
    inner = f'File "{nn.__file__}", line 5, in forward\n    return F.linear(x)'
    trace = f'File "net.py", line 3, in forward\n    return self.fc(x)\n{inner}'
    assert node_location(trace) == "net.py:3: return self.fc(x)"
    assert node_location(inner).endswith("5: return F.linear(x)")
    assert "no source line" in node_location(None)
