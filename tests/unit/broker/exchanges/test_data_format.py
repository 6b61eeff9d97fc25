"""Which versions of the data format a process refuses."""

import pytest

from celery_redis_plus.broker.exchanges import declared_topology
from celery_redis_plus.errors import OptionError, OtherDataFormat


def test_a_broker_with_shards_has_a_format_of_its_own_which_versions_without_shards_refuse():
    topology = declared_topology.DeclaredTopology(shards=4)
    topology.check_mark(b"2.0123456789abcdef.4")
    # As development versions have written it.
    topology.check_mark(b"1.0123456789abcdef.4")
    with pytest.raises(OptionError, match=r"shards=1 is not allowed for this broker; allowed: 4"):
        declared_topology.check_mark(b"2.0123456789abcdef.4", 1)
    with pytest.raises(OtherDataFormat, match=r"has format version 3, .* knows format version 2\."):
        topology.check_mark(b"3.0123456789abcdef.4")


def test_a_later_version_refuses_the_data_of_this_one(monkeypatch):
    monkeypatch.setattr(declared_topology, "FORMAT_VERSION", 2)
    with pytest.raises(OtherDataFormat, match=r"has format version 1, .* knows format version 2"):
        declared_topology.check_mark(b"1.0123456789abcdef", 1)
