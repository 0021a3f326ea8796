// Rates of counters: the last samples of each, and the rates between them. Nothing here accesses the page.

/** A minute, for a view that polls every two seconds. */
export const SAMPLES = 30;

export class Rates {
  #series = new Map();
  #shards = new Map();

  /** Add a sample of a counter; if it went back (a new shard with the same name), the samples begin again. */
  add(name, value, atMs) {
    let series = this.#series.get(name);
    if (series === undefined || value < series.value) {
      series = { value, atMs, rates: [] };
      this.#series.set(name, series);
      return;
    }
    const seconds = (atMs - series.atMs) / 1000;
    if (seconds <= 0) return;
    series.rates.push((value - series.value) / seconds);
    if (series.rates.length > SAMPLES) series.rates.shift();
    series.value = value;
    series.atMs = atMs;
  }

  /**
   * Add a sample of a shard: its counter is the number of records that were appended while this page was open. A killed
   * server loses the offsets that it had reserved for records in memory, so the next offset alone would jump.
   */
  addShard(name, shard, atMs) {
    const held = shard.start_offset + shard.record_count;
    const before = this.#shards.get(name);
    const isSame = before !== undefined && before.id === shard.shard_id;
    const added = isSame ? Math.max(0, Math.min(shard.next_offset - before.next, held - before.held)) : 0;
    const total = (isSame ? before.total : 0) + added;
    this.#shards.set(name, { id: shard.shard_id, next: shard.next_offset, held, total });
    this.add(name, total, atMs);
    return total;
  }

  /** Rates per second, oldest first. */
  of(name) {
    return this.#series.get(name)?.rates ?? [];
  }

  /** Mean of the newest three, null before there are two samples. */
  now(name) {
    const newest = this.of(name).slice(-3);
    return newest.length ? newest.reduce((sum, each) => sum + each, 0) / newest.length : null;
  }

  /** Remove every counter that is not among these. */
  keep(names) {
    for (const known of [this.#series, this.#shards]) {
      for (const name of known.keys()) if (!names.has(name)) known.delete(name);
    }
  }
}
