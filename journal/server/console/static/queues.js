// Cache queues: shards below $queue, and how far each is drained.

import { h, setText } from "./dom.js";
import { failureNotice } from "./failures.js";
import { bytes, count, duration, rate } from "./format.js";
import { address, pager } from "./paging.js";
import { poll } from "./polling.js";
import { Rates } from "./rates.js";
import { Chart } from "./sparkline.js";

const FILTER = "$queue/#";
const PREFIX = "$queue/";
const DRAINED = "drained";
const PAGE = 50;
const INTERVAL_MS = 2000;

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
    const page = await api.shards({ filter: FILTER, after, limit: PAGE }, signal);
    const { cursors } = await api.cursors({ filter: FILTER, after, limit: PAGE }, signal);
    if (signal.aborted) return;
    const drained = new Map(cursors.filter((each) => each.name === DRAINED).map((each) => [each.shard, each.offset]));
    const names = new Set(page.shards.map((shard) => shard.name));
    for (const [name, card] of cards) {
      if (names.has(name)) continue;
      card.element.remove();
      cards.delete(name);
    }
    rates.keep(new Set([...names].flatMap((name) => [`in ${name}`, `out ${name}`])));
    const now = performance.now();
    for (const shard of page.shards) {
      let card = cards.get(shard.name);
      if (card === undefined) {
        card = new Card(shard.name);
        cards.set(shard.name, card);
        list.append(card.element);
      }
      const offset = Math.max(drained.get(shard.name) ?? 0, shard.start_offset);
      rates.add(`in ${shard.name}`, shard.next_offset, now);
      rates.add(`out ${shard.name}`, offset, now);
      card.show(shard, offset, rates);
    }
    empty.hidden = page.shards.length > 0;
    pages.update(page.shards.at(-1)?.name ?? after, page.more);
  }

  poll(ask, INTERVAL_MS, signal, failure.show);
}

class Card {
  #depth = h("dd");
  #in = h("dd");
  #out = h("dd");
  #size = h("dd");
  #left = h("dd");
  #progress;
  #says = h("span", { class: "faint" });
  #chart = new Chart("Drained a second in the last minute", rate);
  #highest = 0;

  constructor(name) {
    const short = name.startsWith(PREFIX) ? name.slice(PREFIX.length) : name;
    this.#progress = h("progress", { max: 1, value: 0, "aria-label": `Drained of ${short}` });
    const fact = (text, value) => h("div", {}, h("dt", {}, text), value);
    this.element = h(
      "article",
      { class: "panel queue", "data-queue": short },
      h("div", { class: "head" }, h("h2", {}, h("a", { class: "mono", href: address("shard", { name }) }, short)), this.#says),
      this.#progress,
      h("dl", { class: "facts five" }, fact("Waiting", this.#depth), fact("Put in", this.#in), fact("Drained", this.#out), fact("Empty in about", this.#left), fact("Size", this.#size)),
      this.#chart.element,
    );
  }

  show(shard, drained, rates) {
    const depth = Math.max(0, shard.next_offset - drained);
    const put = rates.now(`in ${shard.name}`);
    const out = rates.now(`out ${shard.name}`);
    // Since when is not told: progress is measured against the most that this page has seen waiting.
    this.#highest = depth === 0 ? 0 : Math.max(this.#highest, depth);
    this.#progress.value = depth === 0 ? 1 : 1 - depth / this.#highest;
    setText(this.#says, depth === 0 ? "empty" : `${Math.floor(this.#progress.value * 100)} % of ${count(this.#highest)} drained`);
    setText(this.#depth, count(depth));
    setText(this.#in, rate(put));
    setText(this.#out, rate(out));
    setText(this.#left, depth === 0 ? "–" : duration(out > put ? depth / (out - put) : Infinity));
    setText(this.#size, bytes(shard.size_bytes));
    this.#chart.draw(rates.of(`out ${shard.name}`));
  }
}
