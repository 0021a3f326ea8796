// Asking again and again while a view is open and its tab is looked at.

const LONGEST_MS = 30_000;

/** Call `ask` now and every `intervalMs`, until the signal; `failed` gets what it throws, and null once it went well. */
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
      wait = Math.min(intervalMs * 2 ** failures, LONGEST_MS);
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
