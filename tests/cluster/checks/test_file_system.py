from pathlib import Path

import pytest

from cluster.checks.file_system import file_system, nearest_existing

MOUNTS = """\
overlay / overlay rw,relatime 0 0
tmpfs /tmp tmpfs rw 0 0
server:/export {root} nfs4 rw,vers=4.2 0 0
/dev/sdb {root}/with\\040blank xfs rw 0 0
/dev/sdc {root}/twice ext4 rw 0 0
/dev/sdd {root}/twice btrfs rw 0 0
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    file = tmp_path / "mounts"
    file.write_text(MOUNTS.format(root=tmp_path))
    return file


@pytest.mark.parametrize(
    ("folder", "type"),
    [(".", "nfs4"), ("new/runs", "nfs4"), ("with blank", "xfs"), ("twice/runs", "btrfs")],
)
def test_the_nearest_mount_above_a_folder_has_its_type(
    tmp_path: Path, mounts: Path, folder: str, type: str
) -> None:
    for name in ("with blank", "twice"):
        (tmp_path / name).mkdir()
    found = file_system(tmp_path / folder, mounts)
    assert found.type == type
    assert found.folder == str(tmp_path / folder)
    assert found.free_bytes > 0


def test_a_name_that_begins_alike_is_no_folder_above(tmp_path: Path, mounts: Path) -> None:
    (tmp_path / "twice-as-much").mkdir()
    assert file_system(tmp_path / "twice-as-much", mounts).type == "nfs4"


def test_the_kernels_own_list_is_read() -> None:
    assert file_system(Path("/proc")).type == "proc"


def test_a_link_leads_to_where_files_lie(tmp_path: Path, mounts: Path) -> None:
    (tmp_path / "twice").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "twice")
    assert nearest_existing(tmp_path / "link" / "new" / "runs") == tmp_path / "twice"
    assert file_system(tmp_path / "link", mounts).type == "btrfs"
