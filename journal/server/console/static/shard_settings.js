// Actions on a shard: mode, retention, rolling, deleting. Actions that lose records need a confirmation.

import { announce, h } from "./dom.js";
import { confirmed } from "./dialogs.js";
import { failureNotice } from "./failures.js";

const BOUNDS = [
  ["max_age_s", "Longest age, seconds"],
  ["max_bytes", "Most bytes"],
  ["max_records", "Most records"],
];

export function settingsPanel(api, name, again) {
  const failure = failureNotice();
  let shard = null;
  let edited = false;

  /** Carry out an action with its button disabled, and show the result. */
  async function act(button, done, what) {
    button.disabled = true;
    try {
      await what();
      failure.show(null);
      announce(done);
      again();
    } catch (error) {
      failure.show(error);
    } finally {
      button.disabled = false;
    }
  }

  const mode = h("button", { type: "button", id: "switch-mode", disabled: true }, "Switch mode");
  mode.addEventListener("click", async () => {
    const wanted = shard.config.mode === "memory" ? "file" : "memory";
    const risk = "Records appended from now on live in memory: they are lost when the node stops or is killed.";
    const safe = "Records appended from now on are on disk before they are acknowledged.";
    const sure = await confirmed({
      title: `Switch to ${wanted} mode?`,
      text: wanted === "memory" ? risk : safe,
      action: `Switch to ${wanted}`,
      danger: wanted === "memory",
    });
    if (sure) await act(mode, `${name} is in ${wanted} mode.`, () => api.setMode(name, wanted));
  });

  const roll = h("button", { type: "button", id: "roll", disabled: true }, "Roll active segment");
  roll.addEventListener("click", async () => {
    const text = "The active segment is closed and becomes a Parquet file in the background. Nothing is lost.";
    if (await confirmed({ title: "Roll the active segment?", text, action: "Roll" })) {
      await act(roll, `The active segment of ${name} is closed.`, () => api.roll(name));
    }
  });

  const remove = h("button", { type: "button", id: "delete", class: "danger", disabled: true }, "Delete shard");
  remove.addEventListener("click", async () => {
    const text = "All its records, cursors and files are deleted. This cannot be undone.";
    if (await confirmed({ title: `Delete ${name}?`, text, action: "Delete permanently", danger: true, word: "delete" })) {
      await act(remove, `${name} is deleted.`, async () => {
        await api.deleteShard(name);
        location.hash = "#/shards";
      });
    }
  });

  const inputs = new Map(BOUNDS.map(([key]) => [key, numberInput(key)]));
  const save = h("button", { type: "submit", disabled: true }, "Save retention");
  const form = h(
    "form",
    { class: "row" },
    BOUNDS.map(([key, label]) => h("label", { class: "grow" }, `${label} (0: no bound)`, inputs.get(key))),
    save,
  );
  form.addEventListener("input", () => { edited = true; });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const retention = Object.fromEntries([...inputs].map(([key, input]) => [key, Number(input.value)]));
    const drops = BOUNDS.some(([key]) => tightens(retention[key], shard.config.retention[key]));
    const text = "The new bounds are tighter. Whole segments beyond them are deleted, oldest first.";
    if (drops && !(await confirmed({ title: "Keep less?", text, action: "Keep less", danger: true }))) return;
    await act(save, `Retention of ${name} is set.`, () => api.configure(name, { retention }));
    edited = false;
  });

  function show(found) {
    // Disabled until the shard is known; afterwards each action disables its own button.
    if (shard === null) for (const button of [mode, roll, remove, save]) button.disabled = false;
    shard = found;
    mode.textContent = found.config.mode === "memory" ? "Switch to file mode" : "Switch to memory mode";
    if (edited || form.contains(document.activeElement)) return;
    for (const [key, input] of inputs) input.value = found.config.retention[key];
  }

  const element = h(
    "section",
    { class: "panel", "aria-labelledby": "settings" },
    h("h2", { id: "settings" }, "Change it"),
    failure.element,
    form,
    h("p", { class: "row level" }, mode, roll, remove),
  );
  return { element, show };
}

function numberInput(name) {
  return h("input", { name, type: "number", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1, required: true, inputmode: "numeric" });
}

/** Whether a bound drops records that another one kept; 0 means no bound. */
function tightens(wanted, now) {
  return wanted > 0 && (now === 0 || wanted < now);
}
