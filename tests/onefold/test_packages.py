"""Onefold's packages are found before a user's files of the same names."""

import subprocess
import sys
from pathlib import Path

SCRIPT = "import onefold; onefold.run; import cluster, sys; print(cluster.__file__, sys.path[0])"


def test_a_cluster_py_beside_a_script_is_not_taken_for_onefolds(tmp_path: Path) -> None:
    (tmp_path / "cluster.py").write_text("raise RuntimeError('not ours')")
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True)
    found, first = done.stdout.split()
    assert Path(found).name == "__init__.py"
    assert first == str(tmp_path)  # the user's own modules come first again


def test_a_users_package_that_was_imported_before_is_named(tmp_path: Path) -> None:
    (tmp_path / "tune.py").write_text("")
    (tmp_path / "script.py").write_text("import tune, onefold; onefold.run")
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True)
    assert "import onefold before your own module tune" in done.stderr


def test_the_packages_come_without_torch_cluster_before_it_and_methods_unasked() -> None:
    script = (
        "import onefold._packages, sys, os; print('torch' in sys.modules);"
        "print(os.environ['OMP_WAIT_POLICY'], os.environ['PYTORCH_NVML_BASED_CUDA_CHECK']);"
        "import kernels; print(kernels.nearest_to_centroid.__module__, 'torch' in sys.modules);"
        "import onefold; print(onefold.methods.OneClassifier.__name__, onefold.method.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    expected = ["False", "PASSIVE", "1", "kernels.filter", "True", "OneClassifier", "method"]
    assert done.stdout.split() == expected, done.stderr
