// Instruments: a number that matters, and how it came to be.

import { ceiling, count, html, percent, quantile, say, seconds, svg } from "./draw.js";

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
    this.element = html("figure", { class: "gauge", "aria-label": title }, caption, this.plot, this.note);
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

const LONG = "1h"; // the window that shares are shown of

/** An arc for each class of service: how much of what it may miss is left. */
class Objectives {
  constructor() {
    this.rows = html("ul", { class: "objectives" });
    this.element = html("div", { class: "gauge" }, html("span", { class: "label" }, "Within their limits, last hour"), this.rows);
    this.element.hidden = true; // until there is one
    this.told = "";
  }

  show(classes) {
    const told = JSON.stringify(classes);
    if (told === this.told) return;
    this.told = told;
    this.element.hidden = !classes.length;
    // A class that nobody has asked for has nothing to show beside its name.
    const used = classes.filter((each, index) => !index || each.windows.budget[0]);
    this.rows.replaceChildren(...used.map((each) => html("li", {}, arc(budgetLeft(each)), words(each))));
  }
}

function budgetLeft({ target, windows: { budget: [total, good] } }) {
  return total ? 1 - (1 - good / total) / (1 - target) : 1;
}

function words(each) {
  const [total, good] = each.windows[LONG];
  const limits = Object.entries(each.limits).map(([name, limit]) => `${LIMITS[name]} ${seconds(limit)}`);
  const left = budgetLeft(each);
  const budget = left < 0 ? "Error budget overspent" : `${percent(left)} of the error budget left`;
  return html(
    "div",
    {},
    html("p", {}, html("span", { class: "number" }, total ? share(good / total) : "–"), " ", html("span", { class: "label" }, each.name)),
    html("p", { class: "note" }, budget),
    html("p", { class: "note" }, `${share(each.target)} are promised ${limits.join(", ")}`),
  );
}

const LIMITS = { ttft: "a first token in", tpot: "each other in", e2e: "all in" };

/** 0.9987 -> "99.9 %": never rounded up to a whole that is not there. */
function share(value) {
  return `${Math.floor(value * 1000 + 1e-9) / 10}\u00a0%`;
}

function arc(left) {
  const [radius, length] = [20, Math.PI * 20 * 1.5]; // three quarters of a circle
  const circle = (name, part) =>
    svg("circle", { class: name, r: radius, cx: 24, cy: 24, "stroke-dasharray": `${Math.max(0, part) * length} 999`, transform: "rotate(135 24 24)" });
  const element = svg("svg", { class: `arc ${left <= 0 ? "spent" : ""}`, viewBox: "0 0 48 48", "aria-hidden": "true" });
  element.append(circle("arc-track", 1), circle("arc-left", Math.min(1, left)));
  return element;
}

export class Gauges {
  constructor(root) {
    this.rate = new Instrument("Tokens per second", "decode");
    this.first = new Instrument("Time to first token", "prefill");
    this.each = new Instrument("Time per token", "decode");
    this.objectives = new Objectives();
    root.append(this.rate.element, this.first.element, this.each.element, this.objectives.element);
    this.clear();
  }

  clear() {
    this.samples = []; // [seconds, tokens so far]
    this.rates = []; // [seconds, tokens a second]
    this.recent = [];
  }

  /** A connection begins. What came before goes on where it was of the same router: each connection ends after a while. */
  begin(router) {
    if (router !== this.router) this.clear();
    this.router = router;
    this.samples = [];
    this.recent = [];
  }

  /** The tokens a second, now. */
  show(snapshot) {
    this.recent = [...this.recent, ...snapshot.recent].slice(-64);
    if (snapshot.recent.length || snapshot.first) {
      const limits = snapshot.objectives[0]?.limits ?? {}; // of the class that requests have by default
      this.showTimes(this.first, "first_token", limits.ttft);
      this.showTimes(this.each, "per_token", limits.tpot);
    }
    this.objectives.show(snapshot.objectives);
    return this.showRate(snapshot);
  }

  showRate({ at, num_tokens: tokens }) {
    const last = this.samples[this.samples.length - 1];
    if (last && (tokens < last[1] || at < last[0])) this.samples = []; // another router, or one that has begun anew
    this.samples.push([at, tokens]);
    while (this.samples.length > 2 && this.samples[1][0] <= at - RATE_SECONDS) this.samples.shift();
    const [since, before] = this.samples[0];
    const rate = at > since ? (tokens - before) / (at - since) : (this.rates.at(-1)?.[1] ?? 0);
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
    const isNear = limit && limit < late * 4; // a limit far above all would leave nothing to see below it
    const top = Math.max(late, isNear ? limit : 0) * 1.2; // what took longer still is cut off
    const step = WIDTH / 64;
    const y = (value) => HEIGHT - Math.min(1, value / top) * (HEIGHT - 2);
    const strokes = values.map((value, index) =>
      svg("rect", { class: value > (limit ?? Infinity) ? "stroke over" : "stroke", x: WIDTH - (values.length - index) * step + 0.6, width: step - 1.2, y: y(value), height: HEIGHT - y(value), rx: 1 }),
    );
    const level = (value, name) => svg("path", { class: name, d: `M0 ${y(value).toFixed(1)}H${WIDTH}` });
    instrument.plot.replaceChildren(...strokes, level(middle, "median"), ...(isNear ? [level(limit, "limit")] : []));
    instrument.show(seconds(middle), "median", `95 % within ${seconds(late)} · last ${values.length}`);
  }
}
