// A small chart of rates. The same is next to it as text, so it is hidden from screen readers.

import { h, setText, svg } from "./dom.js";
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
      svg("line", { x1: 0, y1: HEIGHT, x2: WIDTH, y2: HEIGHT }),
      this.#area,
      this.#line,
    );
  }

  draw(rates) {
    const highest = Math.max(1e-9, ...rates);
    const points = rates.map((rate, index) => {
      const x = WIDTH - ((rates.length - 1 - index) * WIDTH) / (SAMPLES - 1);
      return `${x.toFixed(1)},${(HEIGHT - 1 - (rate / highest) * (HEIGHT - 3)).toFixed(1)}`;
    });
    this.#line.setAttribute("points", points.join(" "));
    const first = (WIDTH - ((rates.length - 1) * WIDTH) / (SAMPLES - 1)).toFixed(1);
    this.#area.setAttribute("points", points.length > 1 ? `${first},${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}` : "");
  }
}

/** A wide chart with a description and its maximum; `text` formats a rate. */
export class Chart {
  #spark = new Sparkline(true);
  #highest = h("span");
  #text;

  constructor(title, text) {
    this.#text = text;
    this.element = h("figure", {}, h("figcaption", {}, h("span", {}, title), this.#highest), this.#spark.element);
  }

  draw(rates) {
    setText(this.#highest, rates.length ? `highest ${this.#text(Math.max(...rates))}` : "");
    this.#spark.draw(rates);
  }
}
