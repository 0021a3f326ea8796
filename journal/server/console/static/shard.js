// One shard: its rate, segments, cursors, and actions.

import { settingsPanel } from "./shard_settings.js";
import { facts, h, setText, svg, table } from "./dom.js";
import { cursorRow, CURSOR_COLUMNS, showCursors } from "./cursors.js";
import { failureNotice } from "./failures.js";
import { bytes, count, day, moment, rate } from "./format.js";
import { address } from "./paging.js";
import { poll } from "./polling.js";
import { Rates } from "./rates.js";
import { Chart } from "./sparkline.js";

const INTERVAL_MS = 2000;
const SHOWN_SEGMENTS = 200;

export function openShard({ main, api, parameters, signal }) {
  const name = parameters.get("name") ?? "";
  const failure = failureNotice();
  const numbers = facts(["Mode", "Rate", "Records", "First offset", "Next offset", "Size", "Retention", "Created"]);
  const chart = new Chart("Records a second in the last minute", rate);
  const segments = segmentsPanel();
  const cursors = cursorsPanel(api, () => again());
  const settings = settingsPanel(api, name, () => again());
  main.append(
    h("div", { class: "head" }, h("h1", { class: "mono" }, name), h("a", { class: "button", href: address("tail", { filter: name }) }, "Tail it")),
    failure.element,
    h("section", { class: "panel", "aria-label": "Numbers" }, numbers.element, chart.element),
    segments.element,
    cursors.element,
    settings.element,
  );

  const rates = new Rates();

  async function ask() {
    const shard = await api.shard(name, signal);
    // A name without wildcards is a filter that matches only itself; names have no wildcards.
    const page = await api.cursors({ filter: name, limit: 1 }, signal);
    if (signal.aborted) return;
    rates.addShard(name, shard, performance.now());
    numbers.set("Mode", shard.config.mode);
    numbers.set("Rate", rate(rates.now(name), " records"));
    numbers.set("Records", count(shard.record_count));
    numbers.set("First offset", count(shard.start_offset));
    numbers.set("Next offset", count(shard.next_offset));
    numbers.set("Size", bytes(shard.size_bytes));
    numbers.set("Retention", retentionText(shard.config.retention));
    numbers.set("Created", day(shard.created_us));
    chart.draw(rates.of(name));
    segments.show(shard.segments);
    cursors.show(page.cursors);
    settings.show(shard);
  }

  const again = poll(ask, INTERVAL_MS, signal, failure.show);
}

function retentionText(retention) {
  const parts = [];
  if (retention.max_age_s) parts.push(`${count(retention.max_age_s)} s`);
  if (retention.max_bytes) parts.push(bytes(retention.max_bytes));
  if (retention.max_records) parts.push(`${count(retention.max_records)} records`);
  return parts.length ? parts.join(", ") : "everything";
}

function segmentsPanel() {
  const columns = ["Kind", "State", ["Offsets", "number"], ["Records", "number"], ["Size", "number"], "Begun"];
  const { element, body } = table("Segments, oldest first", columns, { quiet: true });
  element.hidden = true;
  const strip = svg("svg", { class: "strip", viewBox: "0 0 1000 22", preserveAspectRatio: "none", "aria-hidden": "true" });
  const left = h("p", { class: "empty", hidden: true });
  const sum = h("span", { class: "faint" });
  const keys = ["memory", "log", "parquet"].map((kind) => h("span", { class: `key ${kind}` }, kind));
  const head = h("div", { class: "above" }, h("h2", {}, "Segments"), strip, h("p", { class: "keys" }, keys, sum));
  let shown = "";

  function show(segments) {
    const state = JSON.stringify(segments);
    if (state === shown) return;
    shown = state;
    const newest = segments.slice(-SHOWN_SEGMENTS);
    body.replaceChildren(...newest.map(segmentRow));
    const closed = segments.filter((segment) => segment.closed).length;
    element.hidden = segments.length === 0;
    setText(sum, segments.length ? `${count(closed)} closed, ${count(segments.length - closed)} active; oldest first` : "none yet");
    left.hidden = newest.length === segments.length;
    left.textContent = `${count(segments.length - newest.length)} older segments are not listed.`;
    drawStrip(strip, segments);
  }

  return { element: h("section", { class: "panel flush", "aria-label": "Segments" }, head, element, left), show };
}

function segmentRow(segment) {
  const state = segment.closed ? ["closed", "badge good"] : ["active", "badge warn"];
  return h(
    "tr",
    {},
    h("td", { class: "title" }, h("span", { class: `key ${segment.kind}` }, segment.kind)),
    h("td", { class: "corner" }, h("span", { class: state[1] }, state[0])),
    h("td", { class: "number", "data-label": "offsets" }, `${count(segment.base_offset)} – ${count(segment.next_offset)}`),
    h("td", { class: "number", "data-label": "records" }, count(segment.next_offset - segment.base_offset)),
    h("td", { class: "number", "data-label": "size" }, bytes(segment.size_bytes)),
    h("td", { class: "when across", "data-label": "begun" }, moment(segment.created_us)),
  );
}

/** Segments in proportion to their records, with their modes. */
function drawStrip(strip, segments) {
  const records = (segment) => segment.next_offset - segment.base_offset;
  const all = Math.max(1, segments.reduce((sum, segment) => sum + records(segment), 0));
  let end = segments.slice(0, -SHOWN_SEGMENTS).reduce((sum, segment) => sum + records(segment), 0);
  const boxes = segments.slice(-SHOWN_SEGMENTS).map((segment) => {
    const x = (end * 1000) / all;
    const width = Math.max(1, (records(segment) * 1000) / all - 2);
    end += records(segment);
    return svg("rect", { class: segment.kind, x: x.toFixed(2), y: 0, width: width.toFixed(2), height: 22 });
  });
  strip.replaceChildren(...boxes);
}

function cursorsPanel(api, again) {
  const { element, body } = table("Cursors of this shard, and how far they are behind", CURSOR_COLUMNS.slice(1), { quiet: true });
  const head = h("div", { class: "above" }, h("h2", {}, "Cursors"));
  const empty = h("p", { class: "empty", hidden: true });
  element.hidden = true;
  let shown = "";

  function show(cursors) {
    const state = JSON.stringify(cursors);
    if (state === shown) return;
    shown = state;
    element.hidden = cursors.length === 0;
    showCursors(body, empty, cursors, "This shard has no cursors.", (cursor) => cursorRow(api, cursor, again, false));
  }

  return { element: h("section", { class: "panel flush", "aria-label": "Cursors" }, head, element, empty), show };
}
