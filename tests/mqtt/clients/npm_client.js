// The npm package mqtt as a process: commands come in on stdin, a line of JSON each; what happens goes out on stdout.

import { createInterface } from "node:readline";
import mqtt from "mqtt";

const clients = new Map();
const say = (event) => process.stdout.write(JSON.stringify(event) + "\n");

const commands = {
  async connect({ name, url, options }) {
    const client = mqtt.connect(url, { reconnectPeriod: 0, connectTimeout: 15000, ...options });
    clients.set(name, client);
    client.on("message", (topic, payload, packet) => {
      const { qos, retain, properties } = packet;
      say({ event: "message", name, topic, payload: payload.toString(), qos, retain, properties: properties ?? {} });
    });
    client.on("disconnect", (packet) => say({ event: "disconnect", name, reason: packet.reasonCode }));
    client.on("close", () => say({ event: "close", name }));
    const connack = await new Promise((resolve, reject) => {
      client.once("connect", resolve);
      client.once("error", reject);
    });
    return { sessionPresent: connack.sessionPresent };
  },
  async subscribe({ name, filter, options }) {
    const granted = await clients.get(name).subscribeAsync(filter, options);
    return { granted: granted.map((each) => each.qos) };
  },
  async publish({ name, topic, payload, options }) {
    await clients.get(name).publishAsync(topic, payload, options);
    return {};
  },
  async end({ name }) {
    await clients.get(name).endAsync();
    return {};
  },
  async vanish({ name }) {
    clients.get(name).stream.destroy();
    return {};
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { command, ...given } = JSON.parse(line);
  commands[command](given).then(
    (result) => say({ event: "done", ...result }),
    (error) => say({ event: "failed", message: String(error) }),
  );
}
process.exit(0);
