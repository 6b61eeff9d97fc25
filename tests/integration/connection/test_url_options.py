"""Transport options in the broker URL, on every way that kombu takes a URL."""

import pickle

import kombu
import pytest
from celery import Celery

from celery_redis_plus import configure_app
from celery_redis_plus.errors import OptionError

pytestmark = pytest.mark.not_on("all", reason="it writes options behind the URL of one server")

NOBODY = "redisplus://127.0.0.1:1/0?visibility_timeout=9"


def options_of(connection):
    """Return what a connection works with."""
    connection.ensure_connection(max_retries=2, interval_start=0)
    return connection.connection.session.options


@pytest.fixture
def opened():
    connections = []

    def connect(url, **arguments):
        connections.append(kombu.Connection(url, **arguments))
        return connections[-1]

    yield connect
    for connection in connections:
        connection.release()


def test_options_in_the_url_hold_and_go_before_the_transport_options(opened, broker_url):
    connection = opened(f"{broker_url}?visibility_timeout=60&global_keyprefix=a%3Ab", transport_options={"visibility_timeout": 7})

    assert options_of(connection).visibility_timeout == 60
    assert options_of(connection).global_keyprefix == "a:b"
    assert connection.connection.session.address.db == 0


def test_options_in_the_url_survive_clone_pickle_and_the_printed_address(opened, broker_url):
    connection = opened(f"{broker_url}?visibility_timeout=60")
    options_of(connection)

    for copy in (connection.clone(), pickle.loads(pickle.dumps(connection)), kombu.Connection(connection.as_uri("pw"))):
        assert options_of(copy).visibility_timeout == 60
        copy.release()


def test_each_url_of_a_failover_list_has_options_of_its_own(opened, broker_url):
    connection = opened(f"{NOBODY};{broker_url}?visibility_timeout=60")

    assert options_of(connection).visibility_timeout == 60


def test_the_query_can_name_the_database_as_redis_py_has_it(opened, broker_url):
    connection = opened(f"{broker_url.rpartition('/')[0]}?db=1&visibility_timeout=60")

    assert options_of(connection).visibility_timeout == 60
    assert connection.connection.session.address.db == int(broker_url.rpartition("/")[2]) + 1


def test_a_configured_app_takes_options_in_a_redis_url(broker_url):
    app = configure_app(
        Celery("c", broker=f"redis://{broker_url.partition('://')[2]}?visibility_timeout=60", set_as_current=False)
    )

    with app.connection_for_write() as connection:
        assert options_of(connection).visibility_timeout == 60


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("visibilty_timeout=3", "did you mean 'visibility_timeout'"),
        ("visibility_timeout=soon", "visibility_timeout='soon' is not allowed"),
        ("max_retries=3", "put it into broker_transport_options"),
    ],
)
def test_an_option_that_cannot_stand_in_the_url_is_named(opened, broker_url, query, message):
    with pytest.raises(OptionError, match=message):
        opened(f"{broker_url}?{query}").connect()


def test_urls_of_other_transports_are_taken_apart_by_kombu_alone():
    with pytest.raises(TypeError, match="visibility_timeout"):
        kombu.Connection("memory://localhost/?visibility_timeout=60")


@pytest.mark.parametrize("password", [False, "pw"])
def test_the_printed_address_has_its_options_as_the_user_wrote_them(opened, broker_url, password):
    connection = opened(f"{broker_url}?visibility_timeout=60&global_keyprefix=a%3Ab")

    assert connection.as_uri(password).endswith(f"/{broker_url.rpartition('/')[2]}?visibility_timeout=60&global_keyprefix=a%3Ab")
    assert connection.as_uri(password).startswith("redisplus://")


def test_the_printed_address_hides_the_password(opened):
    connection = opened("redisplus://app:s3cret@127.0.0.1:6379/2")

    assert connection.as_uri() == "redisplus://app:**@127.0.0.1:6379/2"
    assert connection.as_uri(include_password=True) == "redisplus://app:s3cret@127.0.0.1:6379/2"
    assert opened("redisplus+socket:///run/a.sock?virtual_host=1").as_uri().startswith("redisplus+socket:///run/a.sock")
