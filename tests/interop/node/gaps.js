// Reads partition 0 of topics with kafkajs in both isolation levels until standard input ends: `node gaps.js BOOTSTRAP TOPIC,TOPIC`.
// It prints each record, as `readers/main.go` does. kafkajs reads in groups only; the position is the offset that it would commit.
"use strict";

const { Kafka, logLevel } = require("kafkajs");

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

async function read(kafka, topics, committed) {
  const isolation = committed ? "read_committed" : "read_uncommitted";
  const consumer = kafka.consumer({ groupId: `gaps-${isolation}`, readUncommitted: !committed, maxWaitTimeInMs: 250 });
  await consumer.connect();
  await consumer.subscribe({ topics, fromBeginning: true });
  await consumer.run({
    autoCommitInterval: 100,
    eachMessage: async ({ topic, message }) =>
      say({ what: "got", isolation, topic, offset: Number(message.offset), key: String(message.key) }),
  });
  return consumer;
}

async function main() {
  const [bootstrap, topics] = process.argv.slice(2);
  const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.WARN, logCreator: () => ({ log }) => say({ what: "complaint", log }) });
  const consumers = await Promise.all([false, true].map((committed) => read(kafka, topics.split(","), committed)));
  process.stdin.resume();
  process.stdin.on("end", async () => {
    await Promise.all(consumers.map((consumer) => consumer.disconnect()));
    say({ what: "left" });
  });
}

main().catch((error) => say({ what: "failed", error: String(error) }));
