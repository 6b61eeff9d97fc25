"""A process that forks while another of its threads holds a lock."""

from __future__ import annotations

from tests.support.program import run_script


def test_a_child_forked_amid_another_threads_publish_is_not_locked_out(broker_url):
    assert (
        run_script(
            """
        import json, os, signal, sys, threading, kombu, celery_redis_plus

        connection = kombu.Connection(sys.argv[1])
        producer = kombu.Producer(connection)
        producer.publish("before", routing_key="q")
        commands = connection.default_channel.session.commands
        amid, done = threading.Event(), threading.Event()

        def publishes():
            with commands.exclusive():
                amid.set()
                done.wait(30)

        thread = threading.Thread(target=publishes)
        thread.start()
        amid.wait(30)
        pid = os.fork()
        if not pid:
            signal.alarm(20)
            producer.publish("child", routing_key="q")
            os._exit(0)
        status = os.waitpid(pid, 0)[1]
        done.set()
        thread.join()
        print(json.dumps(status))
        connection.release()
        """,
            broker_url,
        )
        == 0
    )


def test_a_child_forked_while_maintenance_reads_what_is_declared_binds_and_publishes(broker_url):
    status = run_script(
        """
        import json, os, signal, sys, threading, kombu, celery_redis_plus

        connection = kombu.Connection(sys.argv[1])
        channel = connection.channel()
        channel.exchange_declare("x", "topic", durable=True)
        channel.queue_declare("q", durable=True)
        service = channel.session.service
        unacked = service.unacked_messages
        locks = [service.topology._lock, unacked._lock, service.consumed._lock, service.positions._lock, service._lock]
        amid, done = threading.Event(), threading.Event()

        def holds():
            for lock in locks:
                lock.acquire()
            amid.set()
            done.wait(30)
            for lock in locks:
                lock.release()

        thread = threading.Thread(target=holds)
        thread.start()
        amid.wait(30)
        pid = os.fork()
        if not pid:
            signal.alarm(10)
            channel.queue_bind("q", "x", "key")
            channel.basic_publish(channel.prepare_message("m"), exchange="x", routing_key="key")
            os._exit(0)
        status = os.waitpid(pid, 0)[1]
        done.set()
        thread.join()
        print(json.dumps([status, channel.queue_sizes("q").ready]))
        connection.release()
        """,
        broker_url,
    )
    assert status == [0, 1]
