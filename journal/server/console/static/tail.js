// New records of a filter. The newest rows are kept, and the node sends no faster than they are shown.

import { websocketUrl } from "./api.js";
import { h, setText } from "./dom.js";
import { failureNotice } from "./failures.js";
import { clock, count } from "./format.js";
import { address } from "./paging.js";
import { CREDIT_BYTES, Stream } from "./stream.js";

const ROWS = 500;
const SHOWN_CHARACTERS = 2000;
const TAIL = 1;
const FIRST_RETRY_MS = 1000;
const LONGEST_RETRY_MS = 5000;
const STARTS = { latest: "From now on", earliest: "From the beginning" };

export function openTail({ main, api, parameters, signal }) {
  const filter = parameters.get("filter") ?? "";
  const start = parameters.get("from") in STARTS ? parameters.get("from") : "latest";
  const failure = failureNotice();
  const rows = new Rows();
  const state = h("span", { class: "badge", id: "tail-state" }, filter ? "connecting" : "stopped");
  const shown = h("span", { class: "faint" });
  const pause = h("button", { type: "button", "aria-pressed": "false", disabled: true }, "Pause");
  const clear = h("button", { type: "button" }, "Clear");
  main.append(
    h("div", { class: "head" }, h("h1", {}, "Tail"), state),
    tailForm(filter, start),
    failure.element,
    h("div", { class: "row level" }, pause, clear, shown),
    // It is long and grows fast: a screen reader that read it aloud would speak without end.
    h("section", { class: "panel flush", "aria-label": "Records" }, rows.element),
  );
  clear.addEventListener("click", () => rows.clear());
  if (filter) new Tail({ api, filter, start, signal, failure, rows, state, shown, pause }).connect();
}

function tailForm(filter, start) {
  const input = h("input", { name: "filter", value: filter, placeholder: "plant/#", required: true, spellcheck: "false", autocapitalize: "off", autocomplete: "off" });
  const from = h("select", { name: "from" }, Object.entries(STARTS).map(([value, text]) => h("option", { value, selected: value === start }, text)));
  const form = h(
    "form",
    { class: "row" },
    h("label", { class: "grow" }, "Topic filter", input),
    h("label", {}, "Start", from),
    h("button", { type: "submit", class: "main" }, "Tail"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = address("tail", { filter: input.value.trim(), from: from.value });
    if (location.hash === wanted) dispatchEvent(new HashChangeEvent("hashchange"));
    else location.hash = wanted;
  });
  return form;
}

class Tail {
  #on;
  #stream = null;
  #paused = false;
  #records = 0;
  #pending = [];
  #consumed = 0;
  #frame = 0;
  #retryMs = FIRST_RETRY_MS;
  #refused = false;
  #url = null;

  constructor(on) {
    this.#on = on;
    on.pause.addEventListener("click", () => this.#pause(!this.#paused));
    on.signal.addEventListener("abort", () => {
      cancelAnimationFrame(this.#frame);
      this.#stream?.close();
    });
  }

  async connect() {
    const { api, filter, signal, failure } = this.#on;
    let url;
    try {
      url = await websocketUrl();
    } catch {
      this.#lost();
      return;
    }
    if (signal.aborted) return;
    if (url === null) {
      this.#refuse(new Error("This node has no WebSocket listener (listen.websocket): nothing can be tailed here."));
      return;
    }
    try {
      this.#url = url;
      this.#stream = new Stream(url, { pushed: (message, size) => this.#take(message, size), closed: () => this.#lost() });
      const hello = { client: "console" };
      if (api.credentials !== null) hello.credentials = api.credentials;
      await this.#stream.call("hello", hello);
      await this.#stream.call("tail", { tail: TAIL, filter, start: { at: this.#on.start }, credit_bytes: CREDIT_BYTES });
      this.#retryMs = FIRST_RETRY_MS;
      failure.show(null);
      this.#on.pause.disabled = false;
      this.#stream.pause(TAIL, this.#paused);
      this.#showLive();
    } catch (error) {
      if (signal.aborted) return;
      // A refusal of the node will be the same next time; a connection that broke may work again.
      if (error.code) this.#refuse(error);
    }
  }

  #refuse(error) {
    this.#refused = true;
    this.#on.failure.show(error);
    this.#show("stopped", "bad");
    this.#on.pause.disabled = true;
    this.#stream?.close();
  }

  #lost() {
    const { signal, failure, rows } = this.#on;
    if (signal.aborted || this.#refused) return;
    if (this.#retryMs === FIRST_RETRY_MS && this.#records) rows.tell("The connection was lost. Records that arrive until it is back are not shown.");
    failure.show(new Error(lostText(this.#url)));
    this.#show("waiting", "warn");
    this.#on.pause.disabled = true;
    this.#on.start = "latest";
    this.#stream = null;
    this.#consumed = 0;
    setTimeout(() => signal.aborted || this.connect(), this.#retryMs);
    this.#retryMs = Math.min(this.#retryMs * 2, LONGEST_RETRY_MS);
  }

  #pause(paused) {
    this.#paused = paused;
    this.#on.pause.setAttribute("aria-pressed", String(paused));
    setText(this.#on.pause, paused ? "Continue" : "Pause");
    this.#showLive();
    this.#stream?.pause(TAIL, paused);
    if (!paused) this.#later();
  }

  #take(message, sizeBytes) {
    this.#consumed += sizeBytes;
    if (message.event === "records") {
      this.#records += message.records.length;
      for (const [begin, end] of message.gaps) this.#pending.push(`${message.shard}: offsets ${begin} to ${end - 1} are lost`);
      for (const record of message.records) this.#pending.push(record);
    } else if (message.event === "unreadable" || message.event === "error") {
      this.#pending.push(`${message.shard}: ${message.error.message}`);
    }
    if (this.#pending.length > ROWS) this.#pending.splice(0, this.#pending.length - ROWS);
    this.#later();
  }

  /** Show waiting records, once a frame; a hidden tab has no frames, and the node waits. */
  #later() {
    if (this.#paused || this.#frame !== 0) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      this.#on.rows.add(this.#pending.splice(0));
      setText(this.#on.shown, `${count(this.#records)} records so far, the newest ${ROWS} are kept`);
      this.#stream?.used(TAIL, this.#consumed);
      this.#consumed = 0;
    });
  }

  #showLive() {
    this.#show(this.#paused ? "paused" : "live", this.#paused ? "warn" : "good");
  }

  #show(text, kind) {
    this.#on.state.className = `badge ${kind}`;
    setText(this.#on.state, text);
  }
}

/** A browser does not report why a WebSocket fails; these are the possible reasons. */
function lostText(url) {
  const reasons = ["it may be out", `listen.websocket_origins may not list ${location.origin}`];
  // Browsers do not ask for a client certificate for a WebSocket, and some fail where one is needed.
  if (url?.startsWith("wss:")) reasons.push(`with tls.client_ca_file, the browser may first have to be asked for a certificate, at ${url.replace("wss:", "https:")}`);
  return `The WebSocket listener takes no connection: ${reasons.slice(0, -1).join(", ")}, or ${reasons.at(-1)}.`;
}

class Rows {
  element = h("ol", { class: "records", tabindex: "0", "aria-label": "Records, newest last" });

  add(items) {
    if (!items.length) return;
    const list = this.element;
    const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
    list.append(...items.map((item) => (typeof item === "string" ? eventRow(item) : recordRow(item))));
    while (list.childElementCount > ROWS) list.firstElementChild.remove();
    if (atEnd) list.scrollTop = list.scrollHeight;
  }

  tell(text) {
    this.add([text]);
  }

  clear() {
    this.element.replaceChildren();
  }
}

function eventRow(text) {
  return h("li", { class: "event" }, text);
}

function recordRow(record) {
  return h(
    "li",
    {},
    h("span", { class: "faint" }, clock(record.timestamp_us)),
    h("span", { class: "topic" }, record.topic || record.shard),
    h("span", { class: "faint" }, count(record.offset)),
    h("span", { class: "value" }, payload(record)),
  );
}

function payload(record) {
  const text = record.value ?? `base64 ${record.value_base64}`;
  return text.length > SHOWN_CHARACTERS ? `${text.slice(0, SHOWN_CHARACTERS)}… (${count(text.length)} characters)` : text;
}
