"""docs/incidents.md shows what its commands print on a broker with four faults, and that they mend them."""

from __future__ import annotations

import pytest

from tests.docs.incident_recording import PAGE, incident
from tests.docs.terminal_recording import recorded, same


@pytest.mark.slow
def test_the_page_shows_what_its_commands_print(broker_url, redis_client):
    page = PAGE.read_text(encoding="utf-8")
    with incident(broker_url, redis_client) as recording:
        assert same(recorded(page, recording)) == same(page), "run: python -m tests.docs.incident_recording"
