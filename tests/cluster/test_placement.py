import pytest

from monolith.cluster.servers import PS_JOB_NAME, ps_label


@pytest.mark.req("NT-UTIL-T1")
def test_label_of_a_parameter_server():
    assert ps_label(3) == f"/job:{PS_JOB_NAME}/task:3/device:CPU:0" == "/job:ps/task:3/device:CPU:0"
