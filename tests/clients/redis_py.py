"""What an application with redis-py does: PORT is the argument, a line on standard input lets it go on."""

import sys

import redis

CALLS = 10_000


def expect(condition, seen):
    if not condition:
        sys.exit(f"unexpected: {seen!r}")


def say(line):
    print(line, flush=True)


def text(value):
    return value.decode() if isinstance(value, bytes) else value


def as_map(reply):
    """RESP3 has maps, RESP2 lists of names and values."""
    if isinstance(reply, dict):
        return {text(name): value for name, value in reply.items()}
    return {text(name): value for name, value in zip(reply[::2], reply[1::2])}


client = redis.Redis(host="127.0.0.1", port=int(sys.argv[1]))
expect(client.ping(), "no PONG")
expect("redis_version" in client.info(), "no INFO")
first = client.execute_command("CL.THROTTLE", "user:1", 1, 2, 60)
expect(first[:4] == [0, 2, 1, -1], first)
any_bytes = client.execute_command("CL.THROTTLE", b"\x00\xff\r\n", 1, 2, 60)
expect(any_bytes[:3] == [0, 2, 1], any_bytes)
say("connected")

for allowed in (True, True, True, False):
    verdict = as_map(client.execute_command("QUELL.ACQUIRE", "shop", "user", "alice"))
    expect(bool(verdict["allowed"]) == allowed, verdict)
    expect(text(verdict["binding"]) == "per-user", verdict)
try:
    client.execute_command("QUELL.ACQUIRE", "nowhere", "user", "alice")
    sys.exit("an unknown domain was answered")
except redis.ResponseError as error:
    expect("nowhere" in str(error), error)
say("asked by rules")

# By default redis-py wraps a pipeline in MULTI and EXEC.
for kind, pipeline in (("plain", client.pipeline(transaction=False)), ("multi", client.pipeline())):
    for call in range(CALLS):
        pipeline.execute_command("CL.THROTTLE", f"{kind}:{call % 100}", 9, 10, 3600)
    replies = pipeline.execute()
    expect(len(replies) == CALLS, len(replies))
    allowed = sum(1 for reply in replies if reply[0] == 0)
    expect(allowed == 1_000, allowed)
say(f"pipelined {len(replies)}")

for _ in range(2):
    sys.stdin.readline()
    reply = client.execute_command("CL.THROTTLE", "user:1", 1, 2, 60)
    expect(reply[1] == 2, reply)
    say("the next command succeeds")
