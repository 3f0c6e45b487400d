"""The pages that teach are run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def blocks(page: str) -> list[str]:
    """The page's Python, in order."""
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)


def test_own_data_model_and_method_run_as_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text("\n".join(blocks("own.md")))
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    shape = done.stdout.splitlines()[-1]
    assert shape.startswith("torch.Size([1, 3])")
