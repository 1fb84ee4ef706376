#!/usr/bin/env python3
"""Submit a task to a Spillway service from Python: one message to its submit exchange.

    submit.py --scene mail.send --key welcome-anna '{"to": "anna@example.com"}'

Needs pika (Debian: python3-pika), and SPILLWAY_AMQP_URL and SPILLWAY_SERVICE in the environment. A task is accepted once
the broker has confirmed its message; from then on it waits in a durable queue for a consumer of the service.
"""
import argparse
import json
import os
import sys
import time
import uuid

import pika
import pika.exceptions


def submit(channel, service, scene, args, key=None, message_id=None, **times):
    """Returns the message's id once the task is accepted. channel is in confirm mode (channel.confirm_delivery()).

    Raises UnroutableError, NackError or ChannelClosedByBroker where it is not accepted. Where the connection broke, nobody
    knows: submit it again with the same message_id, and it will be one task. delay and deadline are in milliseconds.
    """
    message_id = message_id or str(uuid.uuid4())
    headers = {"spillway-scene": scene, "spillway-sent": int(time.time() * 1000)}
    if key is not None:
        headers["spillway-key"] = key
    for name, milliseconds in times.items():
        if milliseconds is not None:
            headers["spillway-" + name] = int(milliseconds)
    properties = pika.BasicProperties(
        message_id=message_id, content_type="application/json", delivery_mode=2, headers=headers)
    channel.basic_publish(
        "spillway.v1.%s.submit" % service, "task", json.dumps(args).encode(), properties, mandatory=True)
    return message_id


def main():
    cli = argparse.ArgumentParser(description="Submit a task to a Spillway service.")
    cli.add_argument("--scene", required=True, help="the kind of task")
    cli.add_argument("--key", help="the idempotency key within the scene")
    cli.add_argument("--message-id", help="of an earlier call, to submit the same again")
    cli.add_argument("--delay", type=int, help="until the first attempt, in milliseconds")
    cli.add_argument("--deadline", type=int, help="after which no attempt begins, in milliseconds")
    cli.add_argument("args", help="the task's arguments, as JSON")
    given = cli.parse_args()

    connection = pika.BlockingConnection(pika.URLParameters(os.environ["SPILLWAY_AMQP_URL"]))
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        print(submit(channel, os.environ["SPILLWAY_SERVICE"], given.scene, json.loads(given.args), given.key,
                     given.message_id, delay=given.delay, deadline=given.deadline))
    except (pika.exceptions.UnroutableError, pika.exceptions.NackError, pika.exceptions.ChannelClosedByBroker) as e:
        sys.exit("not accepted: %r" % e)
    finally:
        if connection.is_open:
            connection.close()


if __name__ == "__main__":
    main()
