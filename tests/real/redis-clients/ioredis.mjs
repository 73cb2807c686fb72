// ioredis, unmodified, against a rack's keys: node ioredis.mjs SOCKET
import assert from "node:assert/strict";
import Redis from "ioredis";

const redis = new Redis({ path: process.argv[2], maxRetriesPerRequest: 0 });
try {
    assert.equal(await redis.set("js:value", "hello"), "OK");
    assert.equal(await redis.get("js:value"), "hello");
    assert.equal(await redis.get("js:missing"), null);
    const binary = Buffer.from(Array.from({ length: 70_000 }, (_, i) => i % 256));
    await redis.set("js:binary", binary);
    assert.ok((await redis.getBuffer("js:binary")).equals(binary));
    assert.equal(await redis.set("js:value", "other", "NX"), null);
    assert.equal(await redis.incrby("js:count", 41), 41);
    await assert.rejects(redis.incr("js:value"), /not an integer/);
    assert.deepEqual(await redis.mget("js:value", "js:missing", "js:count"), ["hello", null, "41"]);
    await redis.set("js:soon", "gone", "PX", 200);
    assert.ok((await redis.pttl("js:soon")) <= 200);
    await new Promise((done) => setTimeout(done, 300));
    assert.equal(await redis.exists("js:soon"), 0);

    const pipeline = redis.pipeline();
    for (let i = 0; i < 500; i++) pipeline.set(`js:p${i}`, i).get(`js:p${i}`);
    const answers = await pipeline.exec();
    for (let i = 0; i < 500; i++) assert.deepEqual(answers[2 * i + 1], [null, String(i)]);

    assert.deepEqual(await redis.multi().set("{js}a", 1).incr("{js}a").exec(), [[null, "OK"], [null, 2]]);
    const cross = redis.multi();
    for (let i = 0; i < 20; i++) cross.set(`js:cross${i}`, i);
    await assert.rejects(cross.exec(), /CROSSSLOT|EXECABORT/);
    assert.equal(await redis.exists("js:cross0", "js:cross19"), 0);

    const keys = [];
    for await (const page of redis.scanStream({ match: "js:p*", count: 50 })) keys.push(...page);
    assert.equal(new Set(keys).size, 500);
    assert.equal(await redis.del("js:value", "js:binary", "js:count", "js:missing"), 3);
} finally {
    redis.disconnect();
}
