"""The benchmark of a launch's start tells its moments, in their order."""

import start


def test_an_older_commits_files_are_there_as_long_as_they_are_timed() -> None:
    with start.checked_out("HEAD") as tree:
        assert tree is not None
        assert tree != start.ROOT
        assert (tree / "cluster" / "launch.py").is_file()
    assert not tree.exists()


def test_beside_an_older_commit_stands_the_ratio() -> None:
    moments = [m + kind for m in (*start.MOMENTS, *start.IN_PYTHON) for kind in start.KINDS]
    rows = {"old, HEAD": dict.fromkeys(moments, 4.0), "new": dict.fromkeys(moments, 1.0)}
    shown = start.table(rows, {"cores": 2})
    assert [*shown.columns[-1].cells] == ["0.25"] * 6
    assert "new / old, s" in [column.header for column in shown.columns]


def test_what_processors_spent_is_that_of_the_last_moment_before() -> None:
    assert start.spent_until([(0.0, 0.0), (5.0, 1.0), (6.0, 2.0)], 5.5) == 1.0


def test_what_was_not_seen_of_the_old_has_no_ratio() -> None:
    assert start.ratio(2.0, 1.0) == "0.50"
    assert start.ratio(0.0, 1.0) == "-"
