"""The benchmark's arithmetic and table: no timing is asserted anywhere."""

from pathlib import Path

import pytest

from benchmarks import growth, idle_workers, instructions, prepared, report
from benchmarks.__main__ import choose, pick
from benchmarks.contenders import KOMBU_REDIS, ORDER, OURS, Contender
from benchmarks.journal import Journal
from benchmarks.measurements import MEASUREMENTS
from benchmarks.runner import Plan, Sample
from benchmarks.stats import percentile, ratio, spread
from benchmarks.targets import FIGURES, Of, Target


def sample(contender, round_number=0, **figures):
    return Sample("test", contender, round_number, 0.1, figures)


def cpu_samples(ours, theirs):
    key = "publish.client_us"
    return [sample(OURS, **{key: value}) for value in ours] + [sample(KOMBU_REDIS, **{key: value}) for value in theirs]


@pytest.mark.parametrize(("percent", "expected"), [(50, 50), (99, 99), (100, 100), (0.5, 1)])
def test_percentile_is_one_of_the_measured_values(percent, expected):
    assert percentile(range(100, 0, -1), percent) == expected


@pytest.mark.parametrize("percent", [0, -1, 101])
def test_percentile_outside_its_range_is_refused(percent):
    with pytest.raises(ValueError, match="percent"):
        percentile([1.0], percent)


def test_percentile_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"), [(1.0, 4.0, 0.25), (None, 4.0, None), (1.0, None, None), (1.0, 0.0, None)]
)
def test_ratio_is_missing_where_a_side_is_missing(ours, theirs, expected):
    assert ratio(ours, theirs) == expected


def test_spread_relates_the_range_to_the_median():
    assert spread([9.0, 10.0, 12.0]) == pytest.approx(0.3)
    assert spread([0.0, 0.0]) is None


def test_summary_takes_medians_and_divides_ours_by_kombu_redis():
    [line] = report.summarise(cpu_samples(ours=[20, 90, 30], theirs=[100, 120, 90]))
    assert line.medians == {OURS: 30, KOMBU_REDIS: 100}
    assert line.ratio == pytest.approx(0.3)


@pytest.mark.parametrize(("ours", "verdict"), [(10, "met, aim too"), (30, "met"), (36, "MISSED")])
def test_verdict_compares_the_ratio_with_must_and_aim(ours, verdict):
    [line] = report.summarise(cpu_samples([ours], [100]))
    assert line.verdict == verdict


def test_verdict_of_a_value_target_needs_no_other_contender():
    [line] = report.summarise([sample(OURS, **{"countdown.late_p99_ms": 31.0})])
    assert line.verdict == "MISSED"


def test_nothing_is_judged_without_ours():
    [line] = report.summarise(cpu_samples([], [100]))
    assert (line.ratio, line.verdict) == (None, "")


def test_target_with_high_is_good_turns_the_comparison():
    target = Target(Of.RATIO, must=2, aim=3, high_is_good=True)
    assert (target.met(1.9), target.met(2), target.aimed(2.9), target.aimed(3)) == (False, True, False, True)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, ""), (0, "0"), (0.2203, "0.22"), (31.44, "31.4"), (500000, "500,000"), (0.00123, "0.00123")],
)
def test_numbers_are_shown_with_three_digits(value, shown):
    assert report.number(value) == shown


def test_text_and_markdown_have_a_column_for_each_contender_that_was_measured():
    lines = report.summarise(cpu_samples([30], [100]))
    head, *_ = report.as_text(lines).splitlines()
    assert head.split()[:5] == ["figure", "unit", "kombu", "redis", "ours"]
    assert "floor" not in head
    *_, last, _, missed = report.as_markdown(lines).splitlines()
    assert last == "| publish: client CPU | µs | 100 | 30 | 0.3x |"
    assert missed == "Targets missed: none."


def test_the_markdown_names_the_targets_that_were_missed():
    text = report.as_markdown(report.summarise(cpu_samples([36], [100])))
    assert text.endswith("Targets missed: publish: client CPU (must <= 0.355x).")


@pytest.mark.parametrize(("early", "shown"), [(0, False), (2, True)])
def test_the_markdown_leaves_out_what_has_to_be_0_and_is(early, shown):
    text = report.as_markdown(report.summarise([sample(OURS, **{"countdown.early": early})]))
    assert ("| countdown, idle worker: early |" in text) is shown


def test_json_keeps_every_sample_behind_the_summary():
    samples = cpu_samples([30, 31], [100])
    document = report.as_json(report.summarise(samples), samples, {"cores": "2"}, {"quick": True})
    assert len(document["samples"]) == 3
    assert document["summary"][0]["verdict"] == "met"


def test_every_figure_is_listed_once():
    keys = [figure.key for figure in FIGURES]
    assert len(keys) == len(set(keys))


def test_every_measurement_can_be_loaded_and_includes_ours():
    assert [one.name for one in MEASUREMENTS.values() if not callable(one.load())] == []
    assert [one.name for one in MEASUREMENTS.values() if not {OURS} <= one.contenders <= set(ORDER)] == []


def test_only_takes_names_and_wildcards_in_the_tables_order():
    assert [measurement.name for measurement in choose("solo*, publish")] == ["publish", "solo", "solo-late"]
    assert len(choose("")) == len(MEASUREMENTS)
    with pytest.raises(SystemExit, match="no measurement 'nothing'"):
        choose("nothing")


def test_contenders_are_picked_by_name_with_a_dash_for_the_space():
    contenders = [Contender(KOMBU_REDIS, "redis://"), Contender(OURS, "redisplus://")]
    assert [contender.name for contender in pick(contenders, "kombu-redis")] == [KOMBU_REDIS]
    with pytest.raises(SystemExit, match="no contender sqs"):
        pick(contenders, "sqs")


def test_contenders_take_turns_and_change_who_goes_first():
    contenders = [Contender(KOMBU_REDIS, "redis://"), Contender(OURS, "redisplus://")]
    plan = Plan([MEASUREMENTS["publish"]], contenders, "127.0.0.1:1", quick=True, rounds=3)
    names = [contender.name for _, contender, _ in plan.turns()]
    assert names == [KOMBU_REDIS, OURS, OURS, KOMBU_REDIS, KOMBU_REDIS, OURS]


def test_journal_counts_and_returns_what_was_noted(tmp_path: Path):
    journal = Journal(tmp_path / "journal")
    other = Journal(tmp_path / "journal")
    journal.note(1, due=2.5)
    other.note(2)
    assert journal.count() == 2
    assert [(entry.seq, entry.due) for entry in other.entries()] == [(1, 2.5), (2, 0.0)]
    assert journal.wait(2, timeout_s=0)
    assert not journal.wait(3, timeout_s=0)
    journal.close()
    other.close()


def test_results_replace_what_stands_between_the_marks_and_nothing_else():
    document = f"head\n{report.RESULTS_BEGIN}\nold\n{report.RESULTS_END}\ntail\n"
    new = report.into_document(document, "new")
    assert new == f"head\n{report.RESULTS_BEGIN}\nnew\n{report.RESULTS_END}\ntail\n"
    assert report.into_document("", "new") == "new\n"


def test_costs_of_the_server_are_reported_side_by_side():
    costs = {
        name: {"publish": instructions.Cost(count, commands=1, bytes_in=1700, bytes_out=8)}
        for name, count in ((KOMBU_REDIS, 10_000.0), (OURS, 25_000.0))
    }
    head, line = instructions.report(costs)
    assert "instructions" in head
    assert line.split()[:4] == ["publish", "10,000", "25,000", "2.50x"]


def test_commands_of_a_worker_are_read_from_monitor_without_those_of_scripts():
    heard = (
        b"OK\r\n"
        b'+100.5 [0 127.0.0.1:1] "SET" "a\\x06b" "line\\n\\"quoted\\" \\\\"\r\n'
        b'+100.75 [0 lua] "GET" "a"\r\n'
        b'+101.0 [0 127.0.0.1:2] "PING"\r\n'
    )
    assert idle_workers.read_monitor(heard) == [
        idle_workers.Step(0.0, 0, (b"SET", b"a\x06b", b'line\n"quoted" \\')),
        idle_workers.Step(0.5, 1, (b"PING",)),
    ]


def test_the_parts_of_a_script_add_up():
    functions = {"luaCallFunction": 80.0, "lua_pcall": 60.0, "VM_CallArgv": 40.0, "zaddCommand": 10.0, "setCommand": 20.0}
    cost = instructions.Cost(100, commands=3, bytes_in=1, bytes_out=1, functions=functions)
    parts = dict(cost.parts())
    assert sum(parts.values()) == cost.instructions
    assert list(parts)[-2:] == ["set", "zadd"]


@pytest.mark.parametrize("early", [True, False])
def test_prepared_consumers_ack_each_message_once(early):
    tally = prepared.Tally()
    consumer = prepared.our_consumer(tally, 2, early=early)
    written, replies = next(consumer)
    acks = []
    for number in range(3):
        claimed = [b"", b"1 tag%d 1 0 0" % number, b"body", b"1 last%d 1 0 0" % number, b"body"]
        written, replies = consumer.send([1] * (replies - 1) + [claimed])
        while not replies:
            acks.append(written)
            written, replies = consumer.send([])
        acks.append(written)
        assert replies == (1 if early else 2)
    assert tally.consumed == 6
    assert [b"".join(acks).count(b"tag%d" % number) for number in range(3)] == [1, 1, 1]
    assert [b"".join(acks).count(b"last%d" % number) for number in range(3)] == [1, 1, 1]


def test_a_curve_tells_its_growth():
    lines = list(growth.report("queued", iter([(1, {"µs": 50.0, "B": None}), (1_000, {"µs": 60.0, "B": 500.0})])))
    assert lines[-2:] == ["| 1,000 | 60 | 500 |", "| growth | 1.20x |  |"]


def test_commands_that_a_connection_sends_at_once_are_one_write():
    first, second, other, later = (
        idle_workers.Step(at, connection, (b"PING",)) for at, connection in ((0.0, 0), (0.0002, 0), (0.0003, 1), (0.2, 1))
    )
    assert idle_workers.in_one_write([first, second, other, later]) == [(first, second), (other,), (later,)]
