"""The table of what each kind of fault has done."""

from types import SimpleNamespace

from tests.chaos.faults.kinds import KINDS, draw, kinds_of
from tests.chaos.storm import Happening
from tests.chaos.tally import UNKNOWN, Tally, cause
from tests.support.judge.executions import Execution, Repeat, Verdict


def repeat(verdict, first=1, second=2):
    return Repeat(Execution("t", first, first, 10.0, None, 10.0), Execution("t", second, second, 20.0, 21.0, 20.0), verdict)


def storm(*diary, **done):
    return SimpleNamespace(diary=list(diary), done=done)


def test_a_repeat_comes_from_the_last_fault_that_may_be_its_cause_and_met_its_worker():
    diary = [
        Happening(5.0, "kill_worker", "kill", 1),
        Happening(6.0, "kill_main", "kill", 1),
        Happening(7.0, "kill_worker", "kill", 3),
        Happening(8.0, "reset", "reset", 1),
        Happening(22.0, "kill_worker", "kill", 1),
    ]
    assert cause(storm(*diary), repeat(Verdict.RUNNING)) == "kill_main"
    assert cause(storm(*diary), repeat(Verdict.PRESUMED_DEAD)) == UNKNOWN


def test_a_fault_of_the_server_meets_all_workers():
    assert cause(storm(Happening(5.0, "flush_all", "FLUSHALL", 0)), repeat(Verdict.ROLLED_BACK)) == "flush_all"


def test_the_table_has_strikes_by_pool_repeats_by_verdict_and_sums():
    tally = Tally()
    assert tally.table() == []
    tally.add("solo", storm(Happening(5.0, "kill_worker", "kill", 1), kill_worker=2, reset=1), [repeat(Verdict.RUNNING)])
    tally.add("gevent", storm(kill_worker=3), [repeat(Verdict.ILLEGAL)])
    lines = [line.split(" | ") for line in tally.table()]
    assert lines[2] == ["| kill_worker", "2", "", "", "3", "", "1", "", "", "", " |"]
    assert lines[-1] == ["| all", "3", "0", "0", "3", "0", "1", "0", "0", "0", "1 |"]
    assert len(lines) == len(KINDS) + 4


def test_a_seed_draws_the_same_faults_again_and_only_those_of_the_pool():
    import random

    def drawn():
        return list(draw("solo", 500, random.Random(7)))

    assert drawn() == drawn()
    assert set(drawn()) <= set(kinds_of("solo"))
    assert len(set(drawn())) >= 20
    assert "kill_child" in kinds_of("prefork")
    assert "kill_child" not in kinds_of("solo")
