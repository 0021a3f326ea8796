// Cache queues: the state of each sink, the waiting records, and the rate at which they are drained.

import { h, setText } from "./dom.js";
import { failureNotice } from "./failures.js";
import { bytes, count, duration, moment, rate } from "./format.js";
import { address, pager } from "./paging.js";
import { poll } from "./polling.js";
import { Rates } from "./rates.js";
import { Chart } from "./sparkline.js";

const PAGE = 50;
const INTERVAL_MS = 2000;
// A queue that would be empty within this time at its present rate keeps up: only records in transit wait.
const KEEPS_UP_S = 10;

const STATES = {
  ok: "delivering",
  down: "sink is out",
  retrying: "trying the sink again",
  starting: "starting",
  draining: "being drained",
  idle: "drained",
  paused: "paused",
  "not driven": "no bridge drives it",
  unknown: "state not known",
};
const LEAVING = new Set(["ok", "draining", "unknown"]);

export function openQueues({ main, api, parameters, signal }) {
  const after = parameters.get("after") ?? "";
  const failure = failureNotice();
  const pages = pager("queues", "", after);
  const list = h("div", { class: "stack" });
  const empty = h("p", { class: "panel empty", hidden: true }, "There are no cache queues on this node.");
  main.append(h("div", { class: "head" }, h("h1", {}, "Cache queues")), failure.element, empty, list, pages.element);

  const cards = new Map();
  const rates = new Rates();

  async function ask() {
    const page = await api.queues({ after, limit: PAGE }, signal);
    if (signal.aborted) return;
    const names = new Set(page.queues.map((queue) => queue.name));
    for (const [name, card] of cards) {
      if (names.has(name)) continue;
      card.element.remove();
      cards.delete(name);
    }
    rates.keep(new Set([...names].flatMap((name) => [`in ${name}`, `out ${name}`])));
    const now = performance.now();
    for (const queue of page.queues) {
      let card = cards.get(queue.name);
      if (card === undefined) {
        card = new Card(queue);
        cards.set(queue.name, card);
        list.append(card.element);
      }
      const put = rates.addShard(`in ${queue.name}`, queue, now);
      rates.add(`out ${queue.name}`, put - queue.waiting_records, now);
      card.show(queue, rates);
    }
    empty.hidden = page.queues.length > 0;
    pages.update(page.after, page.more);
  }

  poll(ask, INTERVAL_MS, signal, failure.show);
}

class Card {
  #state = h("strong");
  #why = h("span");
  #depth = h("dd");
  #in = h("dd");
  #out = h("dd");
  #size = h("dd");
  #left = h("dd");
  #refused = h("dd");
  #progress;
  #says = h("span", { class: "faint" });
  #chart = new Chart("Drained a second in the last minute", rate);
  #highest = 0;

  constructor({ name, shard }) {
    this.#progress = h("progress", { max: 1, value: 0, hidden: true, "aria-label": `Drained of ${name}` });
    const fact = (text, value) => h("div", {}, h("dt", {}, text), value);
    this.element = h(
      "article",
      { class: "panel queue", "data-queue": name },
      h("div", { class: "head" }, h("h2", {}, h("a", { class: "mono", href: address("shard", { name: shard }) }, name)), this.#says),
      h("p", { class: "queue-state" }, this.#state, " ", this.#why),
      this.#progress,
      h("dl", { class: "facts six" }, fact("Waiting", this.#depth), fact("Put in", this.#in), fact("Drained", this.#out), fact("Empty in about", this.#left), fact("Dead letters", this.#refused), fact("Size", this.#size)),
      this.#chart.element,
    );
  }

  show(queue, rates) {
    const depth = queue.waiting_records;
    const put = rates.now(`in ${queue.name}`);
    const out = rates.now(`out ${queue.name}`);
    const leaves = LEAVING.has(queue.state);
    const keepsUp = leaves && queue.state !== "unknown" && (depth === 0 || depth <= out * KEEPS_UP_S);
    setText(this.#state, STATES[queue.state] ?? queue.state);
    setText(this.#why, why(queue));
    // An empty queue without a driver, as of a bridge that was removed, is no alarm.
    this.element.dataset.state = queue.state === "not driven" && depth === 0 ? "unused" : queue.state;
    // The start of the backlog is not known: progress is relative to the highest depth that this page has seen.
    this.#highest = depth === 0 || keepsUp ? 0 : Math.max(this.#highest, depth);
    const part = this.#highest === 0 ? 1 : 1 - depth / this.#highest;
    this.#progress.hidden = !leaves || part === 0 || part === 1;
    this.#progress.value = part;
    if (keepsUp) setText(this.#says, out > 0 ? `keeps up, ${rate(out)}` : "keeps up, nothing waits");
    else if (depth === 0) setText(this.#says, "empty");
    else if (this.#progress.hidden) setText(this.#says, depth === 1 ? "1 record waits" : `${count(depth)} records wait`);
    else setText(this.#says, `${Math.floor(part * 100)} % of ${count(this.#highest)} drained`);
    setText(this.#depth, count(depth));
    setText(this.#in, rate(put));
    setText(this.#out, rate(out));
    setText(this.#left, depth === 0 ? "–" : duration(leaves && out > put ? depth / (out - put) : Infinity));
    setText(this.#refused, count(queue.dead_letter_records));
    setText(this.#size, bytes(queue.size_bytes));
    this.#chart.draw(rates.of(`out ${queue.name}`));
  }
}

/** Since when, driver, and reason: shown before all numbers. */
function why({ driver, reason, since_us, next_attempt_us }) {
  const parts = [];
  if (since_us > 0) parts.push(`since ${moment(since_us)}`);
  if (driver !== "") parts.push(`by ${driver}`);
  if (reason !== "") parts.push(reason);
  if (next_attempt_us > 0) parts.push(`next attempt at ${moment(next_attempt_us)}`);
  return parts.join(" · ");
}
