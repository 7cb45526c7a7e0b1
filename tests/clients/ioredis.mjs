// What an application with ioredis does: PORT is the argument, a line on standard input lets it go on.

import { createInterface } from "node:readline";
import Redis from "ioredis";

const CALLS = 10_000;

function expect(condition, seen) {
  if (!condition) {
    console.error("unexpected:", seen);
    process.exit(1);
  }
}

function asMap(reply) {
  const map = {};
  for (let index = 0; index < reply.length; index += 2) {
    map[reply[index]] = reply[index + 1];
  }
  return map;
}

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const client = new Redis(Number(process.argv[2]), "127.0.0.1");
// Lost connections are told here; the client object itself goes on.
client.on("error", (error) => console.error(String(error)));

expect((await client.ping()) === "PONG", "no PONG");
expect((await client.info()).includes("redis_version"), "no INFO");
const first = await client.call("CL.THROTTLE", "user:1", 1, 2, 60);
expect(String(first.slice(0, 4)) === "0,2,1,-1", first);
const anyBytes = await client.call("CL.THROTTLE", Buffer.from([0, 255, 13, 10]), "1", "2", "60");
expect(String(anyBytes.slice(0, 3)) === "0,2,1", anyBytes);
console.log("connected");

for (const allowed of [1, 1, 1, 0]) {
  const verdict = asMap(await client.call("QUELL.ACQUIRE", "shop", "user", "alice"));
  expect(verdict.allowed === allowed, verdict);
  expect(verdict.binding === "per-user", verdict);
}
const error = await client.call("QUELL.ACQUIRE", "nowhere", "user", "alice").catch((error) => error);
expect(error instanceof Error && error.message.includes("nowhere"), error);
console.log("asked by rules");

const pipeline = client.pipeline();
for (let call = 0; call < CALLS; call += 1) {
  pipeline.call("CL.THROTTLE", `piped:${call % 100}`, 9, 10, 3600);
}
const replies = await pipeline.exec();
const failed = replies.filter(([error]) => error !== null);
expect(failed.length === 0, failed[0]);
const allowed = replies.filter(([, reply]) => reply[0] === 0).length;
expect(allowed === 1_000, allowed);
console.log(`pipelined ${replies.length}`);

for (let restart = 0; restart < 2; restart += 1) {
  await lines.next();
  const reply = await client.call("CL.THROTTLE", "user:1", 1, 2, 60);
  expect(reply[1] === 2, reply);
  console.log("the next command succeeds");
}
await client.quit();
process.exit(0);
