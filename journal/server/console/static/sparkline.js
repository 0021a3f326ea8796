// A small drawing of rates. What it shows stands beside it as text, so it is hidden from screen readers.

import { svg } from "./dom.js";
import { SAMPLES } from "./rates.js";

const WIDTH = 120;
const HEIGHT = 28;

export class Sparkline {
  #area = svg("polygon");
  #line = svg("polyline");

  constructor(wide = false) {
    this.element = svg(
      "svg",
      { class: wide ? "spark wide" : "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      this.#area,
      this.#line,
    );
  }

  draw(rates) {
    const highest = Math.max(1e-9, ...rates);
    const points = rates.map((rate, index) => {
      const x = WIDTH - ((rates.length - 1 - index) * WIDTH) / (SAMPLES - 1);
      return `${x.toFixed(1)},${(HEIGHT - 2 - (rate / highest) * (HEIGHT - 4)).toFixed(1)}`;
    });
    this.#line.setAttribute("points", points.join(" "));
    const first = WIDTH - ((rates.length - 1) * WIDTH) / (SAMPLES - 1);
    this.#area.setAttribute("points", points.length > 1 ? `${first},${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}` : "");
  }
}
