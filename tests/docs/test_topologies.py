"""The examples of the pages on topologies and shards that need other servers than the one of the tests."""

import pytest

from celery_redis_plus.connection.shard_layout import shard_of, shard_prefixes
from tests.docs.blocks import ROOT, of_page
from tests.docs.run_program import run_forked
from tests.support.clusters import running_cluster
from tests.support.sentinels import MASTER_NAME, sentinel_deployment
from tests.support.servers import new_server
from tests.support.tls import make_certificates, tls_in_front_of

PAGES = [ROOT / "docs" / page for page in ("topologies.md", "shards.md")]
BLOCKS = [block for page in PAGES for block in of_page(page) if block.language == "python"]


@pytest.fixture(scope="module")
def sentinels():
    """One Sentinel for all the names on the page, and a master with a replica."""
    config = {"requirepass": "master-secret", "masterauth": "master-secret"}
    lines = {"requirepass": "sentinel-secret", "sentinel auth-pass": f"{MASTER_NAME} master-secret"}
    with sentinel_deployment(sentinels=1, config=config, sentinel_config=lines) as deployment:
        yield deployment


def run(blocks, names, tmp_path):
    for block in blocks:
        code = block.code
        for name, ours in names.items():
            code = code.replace(name, ours)
        assert code != block.code, block
        program = tmp_path / "block.py"
        program.write_text("\n" * (block.line - 1) + code)
        status, printed = run_forked(program)
        assert status == 0, f"{block}\n{printed}"


def with_text(text):
    found = [block for block in BLOCKS if text in block.code]
    assert found
    return found


def waiting(client):
    with client:
        return client.zcard("queue:{celery}")


def test_the_example_with_a_socket_publishes(tmp_path):
    path = tmp_path / "s"
    with new_server({"unixsocket": str(path)}) as server:
        run(with_text("unix://"), {"/run/valkey/valkey.sock": str(path)}, tmp_path)
        assert waiting(server.client()) == 1


def test_the_example_with_tls_publishes(tmp_path):
    certificates = make_certificates(tmp_path)
    with new_server() as server, tls_in_front_of(server.port, certificates) as port:
        names = {"valkey.example:6379": f"localhost:{port}", "/etc/ssl/valkey-ca.pem": str(certificates / "ca.pem")}
        run(with_text("ssl_ca_certs="), names, tmp_path)
        assert waiting(server.client()) == 1


def test_the_example_with_a_credential_provider_publishes(tmp_path):
    token = tmp_path / "token"
    token.write_text("t0ken")
    with new_server() as server:
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "shop-worker", "on", ">t0ken", "~*", "&*", "+@all")
        names = {
            "redispluss://valkey.example:6379": f"redisplus://localhost:{server.port}",
            "/run/secrets/valkey-token": str(token),
        }
        run(with_text("credential_provider"), names, tmp_path)
        assert waiting(server.client()) == 1


def test_the_examples_with_sentinels_publish(sentinels, tmp_path):
    place = f"127.0.0.1:{sentinels.sentinels[0].port}"
    examples = with_text("sentinel1.example")
    run(examples, {f"sentinel{number}.example:26379": place for number in (1, 2, 3)}, tmp_path)
    assert waiting(sentinels.client()) == len(examples)


def test_sentinels_may_speak_tls_and_the_master_not(sentinels, tmp_path):
    certificates = make_certificates(tmp_path)
    with tls_in_front_of(sentinels.sentinels[0].port, certificates) as port:
        names = {
            **{f"sentinel{number}.example:26379": f"localhost:{port}" for number in (1, 2, 3)},
            '"password": "sentinel-secret"': f'"password": "sentinel-secret", "ssl_ca_certs": "{certificates}/ca.pem"',
        }
        run(with_text("sentinel1.example")[:1], names, tmp_path)


def test_the_example_with_a_cluster_publishes(tmp_path):
    config = {"requirepass": "secret", "masterauth": "secret"}
    with running_cluster(primaries=1, replicas=1, prefix="shop:", config=config) as cluster:
        names = {f"node{number}.example:6379": f"127.0.0.1:{cluster.nodes[0].port}" for number in (1, 2, 3)}
        run(with_text("node1.example"), names, tmp_path)
        assert cluster.owner.ask("ZCARD", "{shop:}queue:{celery}") == 1
        prefix = shard_prefixes("shop-3:", 3)[shard_of("celery", 3)] if shard_of("celery", 3) else "{shop-3:}"
        assert cluster.owner.ask("ZCARD", f"{prefix}queue:{{celery}}") == 1


def test_every_example_of_the_pages_is_run():
    run_elsewhere = [block for block in BLOCKS if "localhost:6379/0" in block.code]
    run_here = [block for text in ("unix://", "redispluss://", "sentinel1.", "node1.") for block in with_text(text)]
    assert len(run_elsewhere) + len(run_here) == len(BLOCKS)
