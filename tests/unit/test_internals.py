"""Internals of kombu that are missing, in processes of their own: importing kombu must work whatever is missing."""

import subprocess
import sys

import pytest


def run(script):
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("spoil", ["del kombu.transport.TRANSPORT_ALIASES", "kombu.transport.TRANSPORT_ALIASES = 5"])
def test_kombu_can_be_imported_without_its_table_of_transports(spoil):
    ended = run(f"import kombu.transport\n{spoil}\nimport kombu.serialization\nprint(kombu.serialization.dumps([1], 'json')[2])")

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "[1]\n"
    assert "redisplus://" in ended.stderr


def test_without_the_table_the_transport_is_found_by_its_import_path():
    ended = run(
        "import kombu.transport\ndel kombu.transport.TRANSPORT_ALIASES\n"
        "import kombu.transport as t; t.TRANSPORT_ALIASES = dict()\n"
        "from celery_redis_plus import Transport\nprint(Transport.driver_type)"
    )
    assert ended.stdout == "redis\n", ended.stderr


def test_without_kombus_parser_of_urls_only_options_in_the_url_are_off():
    ended = run(
        "import kombu\nfrom celery_redis_plus.transport.compat import PARSE_URL\n"
        "object.__setattr__(PARSE_URL, 'name', 'gone')\n"
        "connection = kombu.Connection('redisplus://h/3')\n"
        "print(connection.virtual_host, connection.transport.driver_type)\n"
        "kombu.Connection('redisplus://h/3?visibility_timeout=9')"
    )

    assert ended.stdout == "3 redis\n", ended.stderr
    assert "kombu.connection has no 'gone'" in ended.stderr
    assert "Off: transport options in the broker URL; use broker_transport_options" in ended.stderr
    assert ended.stderr.strip().endswith("unexpected keyword argument 'visibility_timeout'")


def test_the_package_loads_neither_celery_nor_redis_py():
    ended = run("import sys, celery_redis_plus\nprint(sorted({'celery', 'redis'} & sys.modules.keys()))")

    assert ended.stdout == "[]\n", ended.stderr


def test_lazy_names_are_listed():
    ended = run("import celery_redis_plus as crp\nprint(set(crp.__all__) - set(dir(crp)))")

    assert ended.stdout == "set()\n", ended.stderr
