// Shards of a filter, a page at a time, with the rates at which they grow.

import { h, setText, table } from "./dom.js";
import { failureNotice } from "./failures.js";
import { bytes, count, rate } from "./format.js";
import { address, filterForm, NARROWER, pager } from "./paging.js";
import { poll } from "./polling.js";
import { Rates } from "./rates.js";
import { Sparkline } from "./sparkline.js";

const PAGE = 50;
const INTERVAL_MS = 2000;

export function openShards({ main, api, parameters, signal }) {
  const filter = parameters.get("filter") ?? "#";
  const after = parameters.get("after") ?? "";
  const failure = failureNotice(NARROWER);
  const pages = pager("shards", filter, after);
  const columns = ["Shard", "Mode", ["Records", "number"], ["Size", "number"], ["Rate", "number"], "Last minute"];
  const { element, body } = table("Shards by name, with the records a second that they take", columns, { quiet: true });
  const sum = h("p", { class: "faint" });
  element.hidden = true;
  const empty = h("p", { class: "empty", hidden: true }, "No shard matches this filter.");
  main.append(
    h("div", { class: "head" }, h("h1", {}, "Shards"), sum),
    filterForm("shards", filter),
    failure.element,
    h("section", { class: "panel flush", "aria-label": "Shards" }, element, empty),
    pages.element,
  );

  const rows = new Map();
  const rates = new Rates();

  async function ask() {
    const page = await api.shards({ filter, after, limit: PAGE }, signal);
    if (signal.aborted) return;
    const names = new Set(page.shards.map((shard) => shard.name));
    for (const [name, row] of rows) {
      if (names.has(name)) continue;
      row.element.remove();
      rows.delete(name);
    }
    rates.keep(names);
    const now = performance.now();
    let place = body.firstElementChild;
    for (const shard of page.shards) {
      let row = rows.get(shard.name);
      if (row === undefined) {
        row = new Row(shard.name);
        rows.set(shard.name, row);
      }
      if (row.element === place) place = place.nextElementSibling;
      else body.insertBefore(row.element, place);
      rates.addShard(shard.name, shard, now);
      row.show(shard, rates);
    }
    element.hidden = page.shards.length === 0;
    empty.hidden = page.shards.length > 0;
    pages.update(page.shards.at(-1)?.name ?? after, page.more);
    setText(sum, sumText(page, after, rates));
  }

  poll(ask, INTERVAL_MS, signal, failure.show);
}

/** Sums of the page; shards on other pages are not counted. */
function sumText({ shards, more }, after, rates) {
  const here = `${count(shards.length)} ${shards.length === 1 ? "shard" : "shards"}${more || after ? " on this page" : ""}`;
  const known = shards.map((shard) => rates.now(shard.name)).filter((each) => each !== null);
  return known.length ? `${here}, ${rate(known.reduce((sum, each) => sum + each, 0), " records")}` : here;
}

class Row {
  #mode = h("span", { class: "badge" });
  #records = h("td", { class: "number", "data-label": "records" });
  #size = h("td", { class: "number", "data-label": "size" });
  #rate = h("td", { class: "number", "data-label": "rate" });
  #spark = new Sparkline();

  constructor(name) {
    this.element = h(
      "tr",
      {},
      h("td", { class: "title" }, h("a", { class: "mono", href: address("shard", { name }) }, name)),
      h("td", { class: "corner" }, this.#mode),
      this.#records,
      this.#size,
      this.#rate,
      h("td", { class: "chart" }, this.#spark.element),
    );
  }

  show(shard, rates) {
    setText(this.#mode, shard.config.mode);
    this.#mode.className = shard.config.mode === "memory" ? "badge warn" : "badge";
    setText(this.#records, count(shard.record_count));
    setText(this.#size, bytes(shard.size_bytes));
    setText(this.#rate, rate(rates.now(shard.name)));
    this.#spark.draw(rates.of(shard.name));
  }
}
