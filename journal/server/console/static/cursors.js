// Cursors of the shards of a filter, and their lag.

import { confirmed } from "./dialogs.js";
import { announce, h, setText, table } from "./dom.js";
import { failureNotice } from "./failures.js";
import { count } from "./format.js";
import { address, filterForm, NARROWER, pager } from "./paging.js";
import { poll } from "./polling.js";

const PAGE = 50;
const INTERVAL_MS = 3000;
const SHOWN_CURSORS = 200;

export const CURSOR_COLUMNS = ["Shard", "Cursor", ["Offset", "number"], ["Behind", "number"], ["Lost", "number"], ""];

export function openCursors({ main, api, parameters, signal }) {
  const filter = parameters.get("filter") ?? "#";
  const after = parameters.get("after") ?? "";
  const behind = parameters.get("after_cursor") ?? "";
  const failure = failureNotice(NARROWER);
  const pages = pager("cursors", filter, after);
  const title = "Cursors, and how many records they are behind the end of their shard";
  const { element, body } = table(title, CURSOR_COLUMNS, { quiet: true });
  element.hidden = true;
  const empty = h("p", { class: "empty", hidden: true });
  main.append(
    h("div", { class: "head" }, h("h1", {}, "Cursors")),
    filterForm("cursors", filter, "Topic filter of their shards"),
    failure.element,
    h("section", { class: "panel flush", "aria-label": "Cursors" }, element, empty),
    pages.element,
  );
  let shown = "";

  async function ask() {
    const page = await api.cursors({ filter, after, after_cursor: behind, limit: PAGE }, signal);
    if (signal.aborted) return;
    pages.update(page.after, page.more, { after_cursor: page.after_cursor });
    const state = JSON.stringify(page.cursors);
    if (state === shown) return;
    shown = state;
    element.hidden = page.cursors.length === 0;
    const none = page.more ? `None of these ${PAGE} shards has a cursor; look at the next page.` : "There are no cursors.";
    showCursors(body, empty, page.cursors, none, (cursor) => cursorRow(api, cursor, again, true));
  }

  const again = poll(ask, INTERVAL_MS, signal, failure.show);
}

/** Rows for cursors; a shard may have any number. Below the rows a line says what is left out or missing. */
export function showCursors(body, note, cursors, none, row) {
  body.replaceChildren(...cursors.slice(0, SHOWN_CURSORS).map(row));
  const left = cursors.length - SHOWN_CURSORS;
  note.hidden = cursors.length > 0 && left <= 0;
  setText(note, cursors.length === 0 ? none : `${count(left)} more are not listed; journal cursor list SHARD lists all.`);
}

/** A row for a cursor, with or without its shard. */
export function cursorRow(api, cursor, again, withShard) {
  const remove = h("button", { type: "button", "aria-label": `Delete cursor ${cursor.name}` }, "Delete");
  remove.addEventListener("click", async () => {
    const text = `A reader of ${cursor.shard} that uses the cursor ${cursor.name} loses its position. This cannot be undone.`;
    if (!(await confirmed({ title: `Delete cursor ${cursor.name}?`, text, action: "Delete cursor", danger: true }))) return;
    try {
      await api.deleteCursor(cursor.shard, cursor.name, cursor.version);
      announce(`Cursor ${cursor.name} is deleted.`);
      again();
    } catch (error) {
      announce(error.message);
    }
  });
  const shard = h("td", { class: "title" }, h("a", { class: "mono", href: address("shard", { name: cursor.shard }) }, cursor.shard));
  return h(
    "tr",
    {},
    withShard ? shard : null,
    h("td", { class: withShard ? "across" : "title" }, h("span", { class: "mono" }, cursor.name)),
    h("td", { class: "number", "data-label": "offset" }, count(cursor.offset)),
    h("td", { class: "number", "data-label": "behind" }, count(cursor.lag_records)),
    h("td", { class: "number", "data-label": "lost" }, count(cursor.lost_records)),
    h("td", { class: "number corner" }, remove),
  );
}
