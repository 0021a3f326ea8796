// The rules of the MQTT brokers on this node: bridges, storage rules, mapping rules. Brokers append each version.

import { websocketUrl } from "./api.js";
import { h, setText, table } from "./dom.js";
import { failureNotice } from "./failures.js";
import { count, moment } from "./format.js";
import { poll } from "./polling.js";
import { Stream } from "./stream.js";

const SHARD = "$mqtt/rules";
const SHOWN_VERSIONS = 20;
const INTERVAL_MS = 2000;
const TITLES = { broker: "Sessions", storage: "Storage rules", mapping: "Mapping rules", bridge: "Bridges" };
const NONE = "No rules are stored in this node: its MQTT brokers, if it has any, use the defaults. journal-broker apply FILE stores rules.";

export function openRules({ main, api, signal }) {
  const failure = failureNotice();
  const says = h("span", { class: "faint" });
  const none = h("p", { class: "panel empty", hidden: true }, NONE);
  const sections = h("div", { class: "stack" });
  const versions = table("Versions, newest first", [["Version", "number"], "Since", "By", "What changed"]);
  const history = h("section", { class: "panel flush", "aria-label": "Versions", hidden: true }, versions.element);
  main.append(h("div", { class: "head" }, h("h1", {}, "Rules"), says), failure.element, none, sections, history);
  let shown = "";

  async function ask() {
    const shard = await shardOrNull(api, signal);
    if (signal.aborted) return;
    const state = shard === null ? "" : `${shard.shard_id} ${shard.next_offset}`;
    none.hidden = shard !== null && shard.next_offset > shard.start_offset;
    if (state === shown) return;
    const told = shard === null ? [] : await read(api, shard);
    if (signal.aborted) return;
    shown = state;
    none.hidden = told.length > 0;
    history.hidden = told.length === 0;
    setText(says, told.length === 0 ? "" : heading(told[0]));
    sections.replaceChildren(...(told.length === 0 ? [] : Object.entries(told[0].rules).map(section)));
    versions.body.replaceChildren(...told.map(versionRow));
  }

  poll(ask, INTERVAL_MS, signal, failure.show);
}

async function shardOrNull(api, signal) {
  try {
    return await api.shard(SHARD, signal);
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}

/** The last versions, newest first. */
async function read(api, shard) {
  const url = await websocketUrl();
  if (url === null) throw new Error("This node has no WebSocket listener (listen.websocket): rules cannot be read here.");
  const stream = new Stream(url, { pushed: () => {}, closed: () => {} });
  try {
    const hello = { client: "console" };
    if (api.credentials !== null) hello.credentials = api.credentials;
    await stream.call("hello", hello);
    const first = Math.max(shard.start_offset, shard.next_offset - SHOWN_VERSIONS);
    const found = [];
    for (let offset = first; offset < shard.next_offset; ) {
      const page = await stream.call("read", { shard: SHARD, start: { at: "offset", value: offset } });
      if (page.next_offset <= offset) break;
      found.push(...page.records.map((record) => JSON.parse(record.value)));
      offset = page.next_offset;
    }
    return found.reverse();
  } finally {
    stream.close();
  }
}

const heading = (told) => `version ${count(told.version)}, since ${moment(told.applied_us)}, by ${told.applied_by}`;

function section([name, rows]) {
  const title = TITLES[name] ?? name;
  const tables = Array.isArray(rows) ? rows : [rows];
  return h(
    "section",
    { class: "panel", "aria-label": title, "data-rules": name },
    h("h2", {}, title),
    h("div", { class: "stack" }, tables.map((row) => h("dl", { class: "pairs" }, Object.entries(row).map(pair)))),
  );
}

function pair([name, value]) {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return h("div", {}, h("dt", {}, name), h("dd", { class: "mono" }, text));
}

function versionRow(told) {
  return h(
    "tr",
    {},
    h("td", { class: "number title" }, count(told.version)),
    h("td", { "data-label": "since" }, moment(told.applied_us)),
    h("td", { "data-label": "by" }, told.applied_by),
    h("td", { class: "across" }, told.changes.map((change) => h("div", {}, change))),
  );
}
