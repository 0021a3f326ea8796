// Formatting of numbers, sizes and times. Nothing here accesses the page.

const COUNTS = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export const count = (value) => COUNTS.format(value);

export function bytes(value) {
  let unit = 0;
  let rest = value;
  while (rest >= 1024 && unit < UNITS.length - 1) {
    rest /= 1024;
    unit += 1;
  }
  return `${rest >= 100 || unit === 0 ? Math.round(rest) : rest.toFixed(1)} ${UNITS[unit]}`;
}

/** Per second; small rates keep a digit, so that a slow topic is not shown as 0. */
export function rate(value, what = "") {
  if (value === null) return "–";
  const text = value > 0 && value < 10 ? value.toFixed(1) : SHORT.format(Math.round(value));
  return `${text}${what}/s`;
}

export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

const part = (value, digits = 2) => String(value).padStart(digits, "0");

/** Local date and time, always as 2026-01-31 23:59:59; 0 means none. */
export function moment(us) {
  return us > 0 ? `${day(us)} ${clock(us).slice(0, 8)}` : "–";
}

/** Local date; 0 means none. */
export function day(us) {
  const date = new Date(us / 1000);
  return us > 0 ? `${part(date.getFullYear(), 4)}-${part(date.getMonth() + 1)}-${part(date.getDate())}` : "–";
}

/** Time of the day, to the millisecond. */
export function clock(us) {
  const date = new Date(us / 1000);
  return `${part(date.getHours())}:${part(date.getMinutes())}:${part(date.getSeconds())}.${part(date.getMilliseconds(), 3)}`;
}
