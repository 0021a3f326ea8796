// The page: the open view, the login, and the state of the node. The views are in modules of their own.

import { Api } from "./api.js";
import { setText } from "./dom.js";
import { poll } from "./polling.js";
import { openCursors } from "./cursors.js";
import { openNode } from "./node.js";
import { openQueues } from "./queues.js";
import { openRules } from "./rules.js";
import { openShard } from "./shard.js";
import { openShards } from "./shards.js";
import { openSignIn } from "./sign_in.js";
import { openTail } from "./tail.js";
import { setUpTheme } from "./theme.js";

const HEALTH_MS = 5000;
const VIEWS = {
  shards: ["Shards", openShards],
  shard: ["Shard", openShard],
  tail: ["Tail", openTail],
  queues: ["Queues", openQueues],
  cursors: ["Cursors", openCursors],
  rules: ["Rules", openRules],
  node: ["Node", openNode],
};

const main = document.getElementById("main");
const signOut = document.getElementById("sign-out");
let open = new AbortController();
let signingIn = false;

const api = new Api((error) => askWho(error));

/** `#/tail?filter=a` as the name of the view and its parameters. */
function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { name: path in VIEWS ? path : "shards", parameters: new URLSearchParams(query) };
}

function show(focus) {
  open.abort();
  open = new AbortController();
  signingIn = false;
  const { name, parameters } = place();
  const [title, view] = VIEWS[name];
  for (const link of document.querySelectorAll(".bar nav a")) {
    const here = link.hash === `#/${name === "shard" ? "shards" : name}`;
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${parameters.get("name") ?? title} · Journal console`;
  main.replaceChildren();
  scrollTo(0, 0);
  view({ main, api, parameters, signal: open.signal });
  if (focus) main.focus();
}

function askWho(error) {
  if (signingIn) return;
  signingIn = true;
  open.abort();
  const again = api.credentials !== null;
  api.credentials = null;
  signOut.hidden = true;
  main.replaceChildren();
  openSignIn(main, again ? error : null, async (credentials) => {
    api.credentials = credentials;
    try {
      // One request at a time: a wrong password counts as one failed login, however much a view requests.
      await api.shards({ filter: "#", limit: 1 });
    } catch (failure) {
      // An authenticated user may still lack rights.
      if (failure.status !== 403) {
        api.credentials = null;
        throw failure;
      }
    }
    signOut.hidden = false;
    show(true);
    watch();
  });
}

signOut.addEventListener("click", () => {
  api.credentials = null;
  signOut.hidden = true;
  show(true);
});

let watching = new AbortController();

/** The badge beside the sections; not shown without the right to see the node. */
function watch() {
  watching.abort();
  watching = new AbortController();
  const link = document.getElementById("health");
  const badge = link.firstElementChild;
  const ask = async () => {
    const node = await api.node(watching.signal);
    badge.className = `badge ${node.ready ? "good" : "bad"}`;
    setText(badge, node.ready ? "ready" : "not ready");
    link.hidden = false;
  };
  poll(ask, HEALTH_MS, watching.signal, (error) => {
    if (error?.status === 401 || error?.status === 403) {
      link.hidden = true;
      watching.abort();
    } else if (error !== null) {
      badge.className = "badge bad";
      setText(badge, "no answer");
      link.hidden = false;
    }
  });
}

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, select, textarea, dialog")) return;
  const filter = main.querySelector("input[name=filter]");
  if (filter === null) return;
  event.preventDefault();
  filter.focus();
  filter.select();
});

addEventListener("hashchange", () => show(true));
setUpTheme(document.getElementById("theme"));
show(false);
watch();
