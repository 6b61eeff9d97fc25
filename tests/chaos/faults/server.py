"""Faults of the server that lose no data: it is killed, restarted, paused, full, or another one takes its place."""

from __future__ import annotations

import resource
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import redis

from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_redis_plus.testing.server import EmbeddedServer
    from tests.chaos.storm import Storm

PREFIX = "celery-redis-plus:"
#: Seconds within which publishers have to be idle, for a fault that wants that.
IDLE_S = 5.0
#: Seconds within which a server without disk space ends, and within which a replica has all data.
SERVER_PATIENCE_S = 20.0


def kill_server(storm: Storm) -> bool:
    """SIGKILL and a new start."""
    return _start_again(storm, "kill the server", lambda server: server.kill())


def restart_server(storm: Storm) -> bool:
    """An orderly stop and a new start."""
    return _start_again(storm, "stop the server", lambda server: server.stop())


def _start_again(storm: Storm, what: str, end: Callable[[EmbeddedServer], object]) -> bool:
    with storm.server_lock:
        storm.note(what)
        end(storm.server)
        storm.pause(0, 1)
        storm.server.start()
        storm.note("the server is back")
    return True


def kill_client(storm: Storm) -> bool:
    """CLIENT KILL for one connection."""
    with storm.server_lock, storm.server.client() as client:
        names = {row["id"]: row["name"] for row in client.client_list()}
        ids = [number for number, name in names.items() if name.startswith(PREFIX)]
        if not ids:
            return False
        try:
            victim = storm.chooser.choice(ids)
            storm.note(f"CLIENT KILL {names[victim]}")
            client.client_kill_filter(_id=victim)
        except redis.ResponseError:
            return False
    return True


def pause_clients(storm: Storm) -> bool:
    """Have the server answer nobody, or take no writes, by CLIENT PAUSE."""
    with storm.server_lock, storm.server.client() as client:
        pause_s = storm.chooser.uniform(0.1, storm.visibility_timeout_s / 4)
        everything = storm.chooser.random() < 0.5
        storm.note(f"CLIENT PAUSE {pause_s:.1f} s {'ALL' if everything else 'WRITE'}")
        with storm.refusing():
            client.client_pause(int(pause_s * 1000), all=everything)
            time.sleep(pause_s)
    return True


def freeze_server(storm: Storm) -> bool:
    """SIGSTOP, for less than the visibility timeout."""
    with storm.server_lock:
        storm.note("freeze the server")
        with storm.refusing():
            storm.server.freeze()
            storm.pause(0.1, storm.visibility_timeout_s / 2)
            storm.server.thaw()
        storm.note("thaw the server")
    return True


def flush_scripts(storm: Storm) -> bool:
    """SCRIPT FLUSH."""
    with storm.server_lock, storm.server.client() as client:
        storm.note("SCRIPT FLUSH")
        client.script_flush()
    return True


def kill_script(storm: Storm) -> bool:
    """Keep the server busy with another's script until SCRIPT KILL; it answers all others with BUSY."""
    with storm.server_lock, publishers_rest(storm) as rest, storm.server.client() as busy, storm.server.client() as client:
        if not rest:
            return False
        client.config_set("lua-time-limit", 50)
        storm.note("a script that does not end")
        thread = threading.Thread(target=_run_for_ever, args=(busy,), daemon=True)
        thread.start()
        with storm.refusing():
            storm.pause(0.2, storm.visibility_timeout_s / 4)
            wait_until(lambda: _kill_script(client), SERVER_PATIENCE_S)
        thread.join(SERVER_PATIENCE_S)
        client.config_set("lua-time-limit", 5000)
        storm.note("SCRIPT KILL")
    return True


def _run_for_ever(client: redis.Redis) -> None:
    # It ends by SCRIPT KILL.
    with suppress(redis.ResponseError, redis.ConnectionError):
        client.eval("while true do end", 0)


def _kill_script(client: redis.Redis) -> bool:
    try:
        client.script_kill()
    except redis.ResponseError:
        return False
    return True


def fill_memory(storm: Storm) -> bool:
    """Leave the server no memory."""
    with storm.server_lock, publishers_rest(storm) as rest, storm.server.client() as client:
        if not rest:
            return False
        storm.note("the memory is full")
        with storm.refusing():
            client.config_set("maxmemory", "1mb")
            storm.pause(0.1, 1)
            client.config_set("maxmemory", "0")
        storm.note("there is memory again")
    return True


def fill_disk(storm: Storm) -> bool:
    """Let the append-only file grow no more: the server ends with `appendfsync always`, and takes no writes with `everysec`."""
    with storm.server_lock, publishers_rest(storm) as rest:
        if not rest:
            return False
        ends = storm.chooser.random() < 0.5
        storm.note(f"the disk is full, {'always' if ends else 'everysec'}")
        if ends:
            _full_disk_ends_the_server(storm)
        else:
            _full_disk_refuses_writes(storm)
        storm.note("there is disk space again")
    return True


def _full_disk_ends_the_server(storm: Storm) -> None:
    with _disk_full(storm.server), storm.server.client() as client, suppress(redis.RedisError):
        client.set("chaos:write", "x" * 1000, px=1)
    wait_until(lambda: not storm.server.running, SERVER_PATIENCE_S, "the end of the server")
    storm.server.kill()
    storm.pause(0, 1)
    storm.server.start()


def _full_disk_refuses_writes(storm: Storm) -> None:
    with storm.server.client() as client:
        client.config_set("appendfsync", "everysec")
        with storm.refusing():
            with _disk_full(storm.server):
                storm.pause(0.1, 1.5)
            wait_until(lambda: client.info("persistence")["aof_last_write_status"] == "ok", SERVER_PATIENCE_S)
        client.config_set("appendfsync", "always")
        # Behind this one all is on disk.
        client.set("chaos:write", "x", px=1)


@contextmanager
def _disk_full(server: EmbeddedServer) -> Iterator[None]:
    """Let no file of the server grow, by RLIMIT_FSIZE; it was started with SIGXFSZ ignored (`tests/chaos/servers.py`)."""
    pid = server.pid
    _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (append_only_file(server).stat().st_size, most))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))


def append_only_file(server: EmbeddedServer) -> Path:
    """Return the file that grows."""
    folder = server.directory / "appendonlydir"
    return max(folder.glob("*.incr.aof"), key=lambda path: int(path.name.split(".")[-3]))


@contextmanager
def publishers_rest(storm: Storm) -> Iterator[bool]:
    """Have nobody publish, and tell whether that was reached: a publish that is refused after a lost reply may be stored."""
    storm.publishers_rest = True
    try:
        until = time.monotonic() + IDLE_S
        while any(sender.busy for sender in storm.senders):
            if time.monotonic() > until:
                yield False
                return
            time.sleep(0.01)
        yield True
    finally:
        storm.publishers_rest = False


# ---- a replica


def promote_replica(storm: Storm) -> bool:
    """An orderly failover: the replica has all data when it takes over."""
    with storm.server_lock, ExitStack() as stack:
        replica, second = new_replica(storm, stack)
        storm.note("fail over")
        with storm.server.client() as first:
            first.client_pause(60_000, all=False)
            wait_until(lambda: offset(second) == offset(first), SERVER_PATIENCE_S, "a replica with all data")
        take_over(storm, replica, second)
    return True


def new_replica(storm: Storm, stack: ExitStack) -> tuple[EmbeddedServer, redis.Redis]:
    """Return a replica of the server that has caught up, and a client of it."""
    replica = storm.make_server()
    client = stack.enter_context(replica.client(decode_responses=True))
    client.replicaof("127.0.0.1", storm.server.port)
    wait_until(lambda: client.info("replication")["master_link_status"] == "up", SERVER_PATIENCE_S, "a replica")
    return replica, client


def offset(client: redis.Redis) -> int:
    """Return the place in the stream of replication."""
    found = client.info("replication")
    return int(found.get("slave_repl_offset", found["master_repl_offset"]))


def take_over(storm: Storm, replica: EmbeddedServer, client: redis.Redis) -> None:
    """End the server, and have all clients find the replica in its place."""
    proxies = [storm.publishers, *(member.proxy for member in storm.crew.members)]
    for proxy in proxies:
        proxy.refuse()
    storm.server.kill()
    client.replicaof("no", "one")
    wait_until_all_is_kept(client)
    old, storm.server = storm.server, replica
    storm.pause(0, 1)
    for proxy in proxies:
        proxy.heal()
    old.close()
    storm.note("the replica has taken over")


def wait_until_all_is_kept(client: redis.Redis) -> None:
    """Wait for the append-only file: one that was just turned on, or synchronised, is rewritten before it keeps anything."""

    def keeps() -> bool:
        found = client.info("persistence")
        return bool(found["aof_enabled"]) and not found["aof_rewrite_in_progress"] and not found["aof_rewrite_scheduled"]

    wait_until(keeps, SERVER_PATIENCE_S, "an append-only file")
