// The state of the node: whether it accepts appends and why not, connections, memory, disk, commits.

import { facts, h, setText, table } from "./dom.js";
import { failureNotice } from "./failures.js";
import { bytes, count, duration, moment, rate } from "./format.js";
import { poll } from "./polling.js";
import { Rates } from "./rates.js";
import { Chart } from "./sparkline.js";

const CONNECTIONS = 100;
const INTERVAL_MS = 2000;
const GROUPS = {
  Traffic: ["Appends", "Appended", "Fetched", "Connections", "Subscriptions"],
  Storage: ["Shards", "Sealed segments", "Shared files", "Checkpoints", "Commit groups", "Committed lsn"],
  "Memory and disk": ["Journal in use", "Unflushed tails", "Memory segments", "Most resident memory", "Up for"],
};

export function openNode({ main, api, signal }) {
  const failure = failureNotice();
  const state = h("span", { class: "badge" });
  const title = h("p", { class: "mono faint" });
  const reasons = h("ul", { class: "notice bad", "aria-label": "Why it is not ready", hidden: true });
  const groups = Object.entries(GROUPS).map(([name, names]) => ({ name, names, ...facts(names, "pairs") }));
  const numbers = { set: (name, text) => groups.find(({ names }) => names.includes(name)).set(name, text) };
  const chart = new Chart("Appends a second in the last minute", rate);
  const columns = ["Peer", "Client", "Protocol", ["Subscriptions", "number"], ["Waiting", "number"], ["Sent", "number"], "Since"];
  const { element, body } = table(`Open connections, the first ${CONNECTIONS}`, columns, { quiet: true });
  const head = h("div", { class: "above" }, h("h2", {}, "Connections"));
  main.append(
    h("div", { class: "head" }, h("h1", {}, "Node"), state),
    title,
    failure.element,
    reasons,
    h("section", { class: "panel", "aria-label": "Rate" }, chart.element),
    h("div", { class: "cards" }, groups.map(({ name, element: pairs }) => h("section", { class: "panel", "aria-label": name }, h("h2", {}, name), pairs))),
    h("section", { class: "panel flush", "aria-label": "Connections" }, head, element),
  );
  const rates = new Rates();

  async function ask() {
    const node = await api.node(signal);
    const page = await api.connections({ limit: CONNECTIONS }, signal);
    if (signal.aborted) return;
    const now = performance.now();
    const found = node.statistics;
    rates.add("appends", found.appends, now);
    rates.add("bytes", found.append_bytes, now);
    rates.add("fetched", found.fetched_bytes, now);
    const why = [...node.reasons];
    if (found.conversion_failure) why.push(`conversion: ${found.conversion_failure}`);
    state.className = `badge ${node.ready ? "good" : "bad"}`;
    setText(state, node.ready ? "ready" : "not ready");
    setText(title, `${node.node_id} · ${node.server} · ${node.addresses.join(" · ")}`);
    reasons.hidden = why.length === 0;
    reasons.replaceChildren(...why.map((reason) => h("li", {}, reason)));
    show(numbers, found, rates);
    chart.draw(rates.of("appends"));
    body.replaceChildren(...page.connections.map(connectionRow));
  }

  poll(ask, INTERVAL_MS, signal, failure.show);
}

function show(numbers, found, rates) {
  numbers.set("Up for", duration(found.uptime_s));
  numbers.set("Appends", `${count(found.appends)} (${rate(rates.now("appends"))})`);
  numbers.set("Appended", `${bytes(found.append_bytes)} (${perSecond(rates.now("bytes"))})`);
  numbers.set("Fetched", `${bytes(found.fetched_bytes)} (${perSecond(rates.now("fetched"))})`);
  numbers.set("Connections", count(found.connections));
  numbers.set("Subscriptions", count(found.subscriptions));
  numbers.set("Shards", count(found.shards));
  numbers.set("Committed lsn", count(found.committed_lsn));
  numbers.set("Commit groups", count(found.commit_groups));
  numbers.set("Checkpoints", count(found.checkpoints));
  numbers.set("Sealed segments", count(found.sealed_segments));
  numbers.set("Shared files", `${count(found.shared_files)} (${bytes(found.shared_live_bytes)}, dead ${bytes(found.shared_dead_bytes)})`);
  numbers.set("Journal in use", bytes(found.journal_used_bytes));
  numbers.set("Unflushed tails", bytes(found.tail_bytes));
  numbers.set("Memory segments", bytes(found.memory_bytes));
  numbers.set("Most resident memory", bytes(found.max_resident_bytes));
}

const perSecond = (value) => (value === null ? "–" : `${bytes(value)}/s`);

function connectionRow(each) {
  return h(
    "tr",
    {},
    h("td", { class: "title mono" }, each.peer),
    h("td", { class: "across" }, each.client || "–"),
    h("td", { class: "corner" }, h("span", { class: "badge" }, each.transport)),
    h("td", { class: "number", "data-label": "subscriptions" }, count(each.subscriptions)),
    h("td", { class: "number", "data-label": "waiting" }, bytes(each.waiting_bytes)),
    h("td", { class: "number", "data-label": "sent" }, bytes(each.sent_bytes)),
    h("td", { class: "when across", "data-label": "since" }, moment(each.opened_us)),
  );
}
