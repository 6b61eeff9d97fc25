"""What the pages say of arguments; docs/generate.py checks that the code knows these names and no others."""

from __future__ import annotations

#: Argument of a queue's declaration -> what it does, with the page that has more.
OF_QUEUES = {
    "x-expires": "An unused queue is deleted after this time, with its messages.",
    "x-message-ttl": "Messages expire so long after their publish ([dead letters](dead-letters.md)).",
    "x-max-priority": "Higher priorities count as this one; 255 by default ([priorities](priorities.md)).",
    "x-max-length": "Ready and delayed messages that the queue takes ([flow control](flow-control.md)).",
    "x-max-length-bytes": "Bytes of headers and bodies that the queue takes ([flow control](flow-control.md)).",
    "x-delivery-limit": "Failed deliveries that make a dead letter of a message; -1: no limit ([dead letters](dead-letters.md)).",
    "x-consumer-timeout": "A consumer that holds a message for longer loses it ([consumers](consumers.md#consumer-timeout)).",
    "x-delayed-retry-min": "The first pause before a failed message is delivered again ([dead letters](dead-letters.md)).",
    "x-delayed-retry-max": "The longest such pause; beside `x-delayed-retry-min` only.",
    "x-max-pending": "Messages that the queue takes: ready, delayed and unacked ones ([flow control](flow-control.md)).",
    "x-throttle": "Publishers are slowed down before the queue is full ([flow control](flow-control.md)).",
    "x-accept-types": "Content types that the queue takes ([flow control](flow-control.md)).",
    "x-redrive": "Failed messages go back to work by themselves ([dead letters](dead-letters.md#automatic-redrive)).",
    "x-retry-policy": "The pauses before failed messages are delivered again ([lifecycle](lifecycle.md#retry-policies)).",
    "x-overflow": "What becomes of a publish to a full queue ([flow control](flow-control.md)).",
    "x-dead-letter-exchange": "Where dead letters go, instead of being kept ([dead letters](dead-letters.md)).",
    "x-dead-letter-routing-key": "Their routing key; without it, the message's own.",
    "x-single-active-consumer": "Of all consumers one gets the messages ([consumers](consumers.md)).",
    "x-max-unacked": "Messages that may be in work at once, over all consumers ([consumers](consumers.md)).",
    "x-rate-limit": "Messages a second, over all consumers ([consumers](consumers.md)).",
    "x-priority-ageing": "A message that has waited so long is one priority higher ([consumers](consumers.md)).",
    "x-durable-subscriber": "A fanout exchange keeps the queue's place while it has no consumer ([broadcasts](broadcasts.md)).",
    "x-event-log": "Whether lifecycle events are written, in place of the option `event_log` ([lifecycle](lifecycle.md)).",
    "x-group-concurrency": "Messages of a group that may be in work at once ([message groups](message-groups.md)).",
    "x-group-order": "`strict`: a failed message keeps its group waiting; `step-aside`: others go on "
    "([message groups](message-groups.md)).",
    "x-fair": "Groups have their messages delivered in turn ([message groups](message-groups.md#fair-queues)).",
    "x-filtered": "Consumers may choose messages by their headers, with `x-filter` ([consumers](consumers.md)).",
}

#: Argument of a consumer -> allowed values, and what it does.
OF_CONSUMERS = {
    "x-priority": (
        "a whole number",
        "Consumers with a higher one get every message while they have credit ([consumers](consumers.md)).",
    ),
    "x-browse": ("true or false", "The consumer gets copies, and takes nothing ([browsing](consumers.md#browsing-a-queue))."),
    "x-filter": (
        "a table of headers, with `x-match` `all` or `any`",
        "The consumer gets messages with these headers, of a queue with `x-filtered` ([consumers](consumers.md)).",
    ),
}

#: Header of a message -> allowed values, and what it does.
OF_MESSAGES = {
    "x-message-group": ("a text or a whole number", "The group that it belongs to ([message groups](message-groups.md))."),
    "x-limiter": (
        "a name, a colon and a rule, such as `stripe:100/s burst=20 cost=3 key=c7`",
        "The limiter that it waits for ([limiters](limiters.md)).",
    ),
    "x-delay": ("milliseconds, up to 100 years", "The message becomes ready so much later ([delayed tasks](delayed-tasks.md))."),
    "x-deduplication-id": ("a text", "A second message with this id is not stored ([lifecycle](lifecycle.md#deduplication))."),
    "x-deduplication-ttl": (
        "milliseconds",
        "The longest time for which the id is remembered, from the message's due time on, with the scope `ttl` at once.",
    ),
    "x-deduplication-scope": (
        "`ttl`, `until-claimed`, `until-started`, `until-acked`",
        "Until when the id is remembered; `ttl` without it.",
    ),
    "x-deduplication-conflict": (
        "`keep`, `replace`, `replace-only`",
        "Whether it takes the place of the waiting one; with `replace-only` it is not stored without one. `keep` by default.",
    ),
    "x-deduplication-delay": ("milliseconds", "How long it waits for newer ones."),
    "x-deduplication-max-wait": ("milliseconds", "How long newer ones may delay it in all."),
}

#: Argument of an exchange or a binding -> allowed values, and what it does.
OF_EXCHANGES = {
    "alternate-exchange": ("a text", "Where messages go that no binding takes ([operating](operating.md))."),
    "x-delayed-type": ("`direct`, `topic`, `fanout`, `headers`", "The type of an exchange of the type `x-delayed-message`."),
    "x-match": (
        "`all`, `any`, `all-with-x`, `any-with-x`",
        "How many headers of a binding to a headers exchange have to be equal.",
    ),
}
