"""An error of one rank ends a job of MPI."""

import os
import shutil
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.dist

PROGRAM = (
    "import sys, time; from mpi4py import MPI\n"
    "from monolith.native_training.mlp_utils import add_mpi_exception_hook\n"
    "add_mpi_exception_hook()\n"
    "rank = MPI.COMM_WORLD.Get_rank(); MPI.COMM_WORLD.Barrier()\n"
    "if rank == 1: raise ValueError('no such file')\n"
    "time.sleep(100)\n"
)


@pytest.mark.slow
@pytest.mark.req("NT-MLP-T5")
def test_an_uncaught_error_of_one_rank_ends_all():
    pytest.importorskip("mpi4py")
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        pytest.skip("there is no mpirun; Debian has it in openmpi-bin")
    start = time.monotonic()
    ran = subprocess.run(
        [
            *(mpirun, "--allow-run-as-root", "--oversubscribe", "-np", "2"),
            *(sys.executable, "-c", PROGRAM),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=80,
    )
    assert ran.returncode == 1
    assert "rank 1 failed by ValueError: no such file" in ran.stderr
    assert time.monotonic() - start < 80
