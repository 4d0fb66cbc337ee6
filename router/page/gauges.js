// Instruments: a number that matters, and how it came to be.

import { ceiling, count, html, quantile, say, seconds, svg } from "./draw.js";

const SPAN_SECONDS = 120; // that tokens a second are shown for
const RATE_SECONDS = 2; // that one rate is taken over
const WIDTH = 240;
const HEIGHT = 54;

class Instrument {
  /** of: whose colour it has */
  constructor(title, of) {
    this.number = html("span", { class: "number" }, "–");
    this.unit = html("span", { class: "label" });
    this.note = html("span", { class: "note" });
    this.plot = svg("svg", { class: `plot of-${of}`, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    const caption = html("figcaption", {}, html("span", { class: "label" }, title), this.number, this.unit);
    this.element = html("figure", { class: "gauge" }, caption, this.plot, this.note);
  }

  show(number, unit, note) {
    say(this.number, number);
    say(this.unit, unit);
    say(this.note, note);
  }
}

function line(points) {
  return points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

export class Gauges {
  constructor(root) {
    this.rate = new Instrument("Tokens per second", "decode");
    this.first = new Instrument("Time to first token", "prefill");
    this.each = new Instrument("Time per token", "decode");
    this.objectives = html("div", { class: "objectives" });
    root.append(this.rate.element, this.first.element, this.each.element, this.objectives);
    this.clear();
  }

  clear() {
    this.samples = []; // [seconds, tokens so far]
    this.rates = []; // [seconds, tokens a second]
    this.recent = [];
  }

  /** The tokens a second, now. */
  show(snapshot) {
    this.recent = [...this.recent, ...snapshot.recent].slice(-64);
    if (snapshot.recent.length || snapshot.first) {
      this.showTimes(this.first, "first_token", snapshot.objectives?.first_token);
      this.showTimes(this.each, "per_token", snapshot.objectives?.per_token);
    }
    return this.showRate(snapshot);
  }

  showRate({ at, num_tokens: tokens }) {
    const last = this.samples[this.samples.length - 1];
    if (last && (tokens < last[1] || at < last[0])) this.samples = []; // another router, or one that has begun anew
    this.samples.push([at, tokens]);
    while (this.samples.length > 2 && this.samples[1][0] <= at - RATE_SECONDS) this.samples.shift();
    const [since, before] = this.samples[0];
    const rate = at > since ? (tokens - before) / (at - since) : 0;
    this.rates = [...this.rates.filter(([when]) => when > at - SPAN_SECONDS), [at, rate]];
    const most = Math.max(...this.rates.map(([, each]) => each));
    const top = ceiling(Math.max(most, 10));
    const points = this.rates.map(([when, each]) => [WIDTH - ((at - when) / SPAN_SECONDS) * WIDTH, HEIGHT - 2 - (each / top) * (HEIGHT - 6)]);
    const path = line(points);
    this.rate.plot.replaceChildren(
      svg("path", { class: "area", d: `${path}L${WIDTH} ${HEIGHT}L${points[0][0].toFixed(1)} ${HEIGHT}Z` }),
      svg("path", { class: "line", d: path }),
    );
    this.rate.show(rate < 9.95 && rate > 0 ? rate.toFixed(1) : count(rate), "", `at most ${count(most)} in two minutes`);
    return rate;
  }

  /** One stroke for each of the last requests, oldest first, and a line where half of them lie below. */
  showTimes(instrument, field, limit = null) {
    const values = this.recent.map((request) => request[field]).filter((value) => value !== null);
    const [middle, late] = [quantile(values, 0.5), quantile(values, 0.95)];
    if (!values.length) {
      instrument.show("–", "", "no request yet");
      instrument.plot.replaceChildren();
      return;
    }
    const top = Math.max(late, limit ?? 0) * 1.2; // what took longer still is cut off
    const step = WIDTH / 64;
    const y = (value) => HEIGHT - Math.min(1, value / top) * (HEIGHT - 2);
    const strokes = values.map((value, index) =>
      svg("rect", { class: value > (limit ?? Infinity) ? "stroke over" : "stroke", x: WIDTH - (values.length - index) * step + 0.6, width: step - 1.2, y: y(value), height: HEIGHT - y(value), rx: 1 }),
    );
    const level = (value, name) => svg("path", { class: name, d: `M0 ${y(value).toFixed(1)}H${WIDTH}` });
    instrument.plot.replaceChildren(...strokes, level(middle, "median"), ...(limit ? [level(limit, "limit")] : []));
    instrument.show(seconds(middle), "median", `95 % within ${seconds(late)} · last ${values.length}`);
  }
}
