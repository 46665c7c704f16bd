"""A report never shows figures of random weights or simulated acceptance without saying so."""

from aerie.bench.reports.report import labels_of


def test_what_a_server_says_is_not_real_is_repeated() -> None:
    engine = {"weights": "DUMMY WEIGHTS", "acceptance": "SIMULATED ACCEPTANCE 3", "dtype": "bfloat16"}
    line = {"target": "Aerie", "server": {"config": {"engine": engine}}}
    assert labels_of(line) == {"Aerie: DUMMY WEIGHTS", "Aerie: SIMULATED ACCEPTANCE 3"}


def test_other_servers_and_failed_cells_have_no_labels() -> None:
    for server in (None, {}, {"config": None}, {"config": {"engine": {"dtype": "bfloat16"}}}):
        assert labels_of({"target": "other", "server": server}) == set()
    assert labels_of({"target": "failed"}) == set()
