"""The page of results says truly which of its tables are of older code."""

from cluster.studies.results_page import NOT_MADE, OLDER, marked, replaced, sources, untrue

OLD, NEW = "0123456789ab", "ba9876543210"
PAGE = f"""# Results

<!-- table: one -->
2026-11-24, commit abc1234, sources {OLD}; a machine.

| 1 |
<!-- end -->
Read off by hand.

<!-- table: two -->
2026-11-20,
sources unknown.
<!-- end -->
<!-- table: three -->
{NOT_MADE}<!-- end -->
"""


def test_a_table_says_on_which_code_it_rests() -> None:
    assert sources(PAGE) == {"one": OLD, "two": "unknown", "three": "unknown"}


def test_a_table_of_other_code_is_marked_and_one_that_is_of_this_code_again_is_not() -> None:
    older = marked(PAGE, {"one": NEW, "two": NEW, "three": NEW})
    assert older.count(OLDER) == 2
    assert older.replace(OLDER, "") == PAGE
    assert marked(older, {"one": NEW, "two": NEW, "three": NEW}) == older
    again = marked(older, {"one": OLD, "two": NEW, "three": NEW})
    assert "<!-- table: one -->\n2026" in again
    assert again.count(OLDER) == 1


def test_a_table_that_no_command_makes_is_of_older_code() -> None:
    assert marked(PAGE, {"one": OLD}).count(OLDER) == 1


def test_tables_that_are_not_marked_truly_are_named() -> None:
    assert untrue(PAGE, {"one": NEW, "two": OLD}) == ["one", "two"]
    older = marked(PAGE, {"one": NEW, "two": OLD})
    assert untrue(older, {"one": NEW, "two": OLD}) == []
    assert untrue(older, {"one": OLD, "two": OLD}) == ["one"]


def test_a_new_table_takes_the_old_ones_place_and_nothing_else_changes() -> None:
    new = replaced(PAGE, "one", f"sources {NEW}\\1\n")
    assert sources(new) == {"one": NEW, "two": "unknown", "three": "unknown"}
    before, after = PAGE.split("<!-- end -->", 1), new.split("<!-- end -->", 1)
    assert after[1] == before[1]
    assert after[0] == f"# Results\n\n<!-- table: one -->\nsources {NEW}\\1\n"
