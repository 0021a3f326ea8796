// Repeated requests while a view is open and its tab is visible.

// An unreachable node is polled often, so that its return is noticed; a refusal is not likely to change.
const LONGEST_AWAY_MS = 5000;
const LONGEST_REFUSED_MS = 30_000;

/** Call `ask` now and every `intervalMs`, until the signal; `failed` takes its errors, and null after a success. */
export function poll(ask, intervalMs, signal, failed) {
  let timer = 0;
  let asking = false;
  let failures = 0;

  async function turn() {
    clearTimeout(timer);
    if (asking || document.hidden || signal.aborted) return;
    asking = true;
    let wait = intervalMs;
    try {
      await ask();
      failures = 0;
      if (!signal.aborted) failed(null);
    } catch (error) {
      if (!signal.aborted) failed(error);
      failures += 1;
      const longest = error.status >= 400 && error.status < 500 ? LONGEST_REFUSED_MS : LONGEST_AWAY_MS;
      wait = Math.min(intervalMs * 2 ** failures, longest);
    } finally {
      asking = false;
    }
    if (!signal.aborted) timer = setTimeout(turn, wait);
  }

  document.addEventListener("visibilitychange", turn, { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  turn();
  return turn;
}
