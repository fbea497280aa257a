// Ways to reach a broker over TLS with kafkajs: with a mechanism and a password, or with a certificate.
// `node logins.js FILE` tries every attempt of the file, and prints a line of JSON for each.
"use strict";

const fs = require("node:fs");
const { Kafka, Partitioners, logLevel } = require("kafkajs");

const WITHIN_MS = 20_000;

async function attempt(given) {
  const certificate = given.certificate ? fs.readFileSync(given.certificate, "utf8") : undefined;
  const kafka = new Kafka({
    brokers: [given.bootstrap],
    logLevel: logLevel.NOTHING,
    retry: { retries: 2, initialRetryTime: 100, maxRetryTime: 1000 },
    connectionTimeout: WITHIN_MS,
    ssl: { ca: [fs.readFileSync(given.ca, "utf8")], key: certificate, cert: certificate },
    sasl: given.mechanism ? { mechanism: given.mechanism.toLowerCase(), username: given.user, password: given.password } : undefined,
  });
  const producer = kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner });
  try {
    await producer.connect();
    await producer.send({ topic: given.topic, messages: [{ value: given.name }] });
    return "";
  } catch (error) {
    return `${error.name}: ${error.message}`;
  } finally {
    await producer.disconnect();
  }
}

async function main() {
  for (const given of JSON.parse(fs.readFileSync(process.argv[2], "utf8"))) {
    console.log(JSON.stringify({ name: given.name, error: await attempt(given) }));
  }
}

main();
