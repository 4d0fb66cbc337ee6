// Requests as dots. A dot lies at the worker that has its request, and travels on the rail that all tiers have.

import { svg } from "./draw.js";

const MOST_DOTS = 60;
const RADIUS = 5;
const GAP = 14; // between the middles of two dots that lie side by side
const GUTTER = 9; // how far beside a tier's cards its branches run
const DWELL_MS = 260; // at least, at each worker, so that an eye can follow
const ZONES = ["door", "encode", "prefill", "decode", "exit"];
const TIERS = ["encode", "prefill", "decode"];
const ZONE_OF = { prepare: "door", wait: "door", encode: "encode", prefill: "prefill", handover: "decode", decode: "decode" };

const calm = matchMedia("(prefers-reduced-motion: reduce)");

export class Flow {
  /** workers: whose cards have the berths */
  constructor(root, canvas, workers) {
    this.root = root;
    this.canvas = canvas;
    this.workers = workers;
    this.rail = svg("path", { class: "rail-line" });
    this.branches = svg("path", { class: "rail-line branch" });
    this.stops = svg("g", { class: "stops" });
    this.layer = svg("g");
    canvas.append(this.branches, this.rail, this.stops, this.layer);
    this.dots = new Map(); // by request
    const measure = new ResizeObserver(() => this.lay());
    for (const each of [root, ...root.querySelectorAll(".workers")]) measure.observe(each);
    calm.addEventListener("change", () => this.lay());
    this.lay();
  }

  show(snapshot) {
    for (const request of snapshot.running) {
      const stops = this.stopsOf(request, ZONE_OF[request.stage]);
      const dot = this.dots.get(request.id) ?? this.begin(request);
      dot?.follow(stops, request.stage);
    }
    for (const request of snapshot.recent) {
      // A request that was over between two snapshots is shown all the same, where anything moves.
      const dot = this.dots.get(request.id) ?? (calm.matches || document.hidden || snapshot.first ? null : this.begin(request));
      dot?.end(this.stopsOf(request, "exit"), request.outcome === "finished");
    }
    const running = new Set(snapshot.running.map((request) => request.id));
    for (const dot of this.dots.values()) if (!running.has(dot.id) && !dot.over) dot.missing();
  }

  /** The places on the way to a zone that this request has, or has had, something at. */
  stopsOf(request, zone) {
    const last = ZONES.indexOf(zone);
    const stops = [{ zone: "door" }];
    for (const [index, each] of ZONES.entries()) {
      if (index === 0 || index > last) continue;
      if (each === "encode" && (!request.images || !request.workers.encode) && each !== zone) continue;
      if (each === "exit" || request.workers[each] || each === zone) stops.push({ zone: each, worker: request.workers[each] });
    }
    return stops;
  }

  begin(request) {
    if (this.dots.size >= MOST_DOTS) return null;
    const dot = new Dot(this, request);
    this.dots.set(request.id, dot);
    return dot;
  }

  /** Measures where everything lies; all dots that rest go there. */
  lay() {
    const frame = this.root.getBoundingClientRect();
    this.canvas.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
    this.stations = new Map();
    for (const zone of ZONES) {
      const rail = this.root.querySelector(`[data-zone="${zone}"] .rail`).getBoundingClientRect();
      this.stations.set(zone, {
        x: rail.left - frame.left + rail.width / 2,
        y: rail.top - frame.top + rail.height / 2,
        left: rail.left - frame.left - GUTTER,
        right: rail.right - frame.left + GUTTER,
      });
    }
    const [first, last] = [this.stations.get("door"), this.stations.get("exit")];
    this.isUpright = Math.abs(last.x - first.x) < Math.abs(last.y - first.y); // tiers below one another
    this.railX = 14;
    this.frame = frame;
    const ends = this.isUpright
      ? [{ x: this.railX, y: first.y }, { x: this.railX, y: last.y }]
      : [{ x: first.left + GUTTER, y: first.y }, { x: last.right - GUTTER, y: last.y }];
    this.rail.setAttribute("d", `M${ends[0].x} ${ends[0].y}L${ends[1].x} ${ends[1].y}`);
    this.ends = ends;
    this.branches.setAttribute("d", TIERS.map((zone) => this.branch(zone)).join(""));
    this.stops.replaceChildren(
      ...TIERS.map((zone) => {
        const { x, y } = this.onRail(this.stations.get(zone));
        return svg("circle", { class: `stop of-${zone}`, cx: x, cy: y, r: 4 });
      }),
    );
    this.settle(0);
  }

  /** From the rail down beside a tier's cards, through their berths, and back up at the other side. */
  branch(zone) {
    const boxes = [...this.workers.berths(zone)].map((berth) => berth.getBoundingClientRect()).filter((box) => box.width);
    const levels = [...new Set(boxes.map((box) => Math.round(box.top - this.frame.top + box.height / 2)))];
    if (!levels.length) return "";
    const { left, right, y: top } = this.stations.get(zone);
    if (this.isUpright) return levels.map((y) => `M${this.railX} ${y}H${left + 2 * GUTTER}`).join("");
    const lowest = Math.max(...levels);
    return `M${left} ${top}V${lowest}M${right} ${top}V${lowest}${levels.map((y) => `M${left} ${y}H${right}`).join("")}`;
  }

  onRail({ x, y }) {
    return this.isUpright ? { x: this.railX, y } : { x, y: this.stations.get("door").y };
  }

  /** Where the index-th dot of a stop lies. */
  place(stop, index) {
    const box = stop.worker ? this.workers.berth(stop.zone, stop.worker)?.getBoundingClientRect() : null;
    if (box?.width) {
      const room = Math.max(1, Math.floor(box.width / GAP));
      const at = Math.min(index, room - 1);
      return { x: box.left - this.frame.left + GAP / 2 + at * GAP, y: box.top - this.frame.top + box.height / 2 };
    }
    const station = this.stations.get(stop.zone);
    if (this.isUpright) return { x: this.railX + 26 + (index % 6) * GAP, y: station.y };
    return { x: station.left + GUTTER + 8 + (index % 6) * GAP, y: station.y + 20 + Math.floor(index / 6) * GAP };
  }

  /** Dots that rest close the gaps that others have left. */
  settle(milliseconds = 200) {
    const held = new Map();
    for (const dot of this.dots.values()) {
      if (dot.moving || dot.over || !dot.stop) continue;
      const name = `${dot.stop.zone} ${dot.stop.worker ?? ""}`;
      const index = held.get(name) ?? 0;
      held.set(name, index + 1);
      dot.rest(this.place(dot.stop, index), milliseconds);
    }
  }

  numberAt(stop) {
    let number = 0;
    for (const dot of this.dots.values()) if (dot.stop?.zone === stop.zone && dot.stop?.worker === stop.worker) number += 1;
    return number;
  }

  /** Out of a berth at its right, along the rail, into the next one from its left. */
  path(from, to, fromZone, toZone) {
    if (this.isUpright) return [from, this.onRail(from), this.onRail(to), to];
    const y = this.stations.get("door").y;
    const beside = (zone, side, point) => (TIERS.includes(zone) ? this.stations.get(zone)[side] : point.x);
    const [out, into] = [beside(fromZone, "right", from), beside(toZone, "left", to)];
    return [from, { x: out, y: from.y }, { x: out, y }, { x: into, y }, { x: into, y: to.y }, to];
  }
}

class Dot {
  constructor(flow, request) {
    this.flow = flow;
    this.id = request.id;
    this.at = flow.ends[0];
    this.stop = null;
    this.next = [];
    this.moving = false;
    this.over = false;
    this.element = svg("circle", { class: `dot ${request.images ? "of-picture" : "of-text"}`, r: RADIUS });
    this.element.dataset.stage = "prepare";
    this.put(this.at);
    flow.layer.append(this.element);
  }

  /** Along these stops, as far as they are new. */
  follow(stops, stage) {
    if (this.over) return;
    const goal = stops[stops.length - 1];
    const last = this.next[this.next.length - 1] ?? this.stop;
    this.stage = stage;
    if (last && last.zone === goal.zone && last.worker === goal.worker) {
      if (!this.next.length && !this.moving) this.element.dataset.stage = stage;
      return;
    }
    const from = last ? ZONES.indexOf(last.zone) : -1;
    const isBack = ZONES.indexOf(goal.zone) < from;
    this.next.push(...(isBack ? [goal] : stops.filter((stop) => ZONES.indexOf(stop.zone) > from)));
    if (ZONES.indexOf(goal.zone) === from) this.next.push(goal); // the same stage at another worker
    this.go();
  }

  end(stops, isWell) {
    if (this.over) return;
    if (isWell) this.follow(stops, "decode");
    this.over = true;
    this.failed = !isWell;
    this.go();
  }

  /** Its request is gone, and nobody has told how it ended. */
  missing() {
    this.over = true;
    this.next = [{ zone: "exit" }];
    this.go();
  }

  async go() {
    if (this.moving) return;
    this.moving = true;
    while (this.next.length) {
      const stop = this.next.shift();
      const slot = this.flow.numberAt(stop);
      const before = this.stop;
      this.stop = stop;
      if (stop.zone !== "door") this.element.dataset.stage = { exit: "decode" }[stop.zone] ?? stop.zone;
      const goal = stop.zone === "exit" ? this.flow.ends[1] : this.flow.place(stop, slot);
      await this.travel(this.flow.path(this.at, goal, before?.zone, stop.zone), this.next.length > 2 ? 0.6 : 1);
      this.at = goal;
      if (this.next.length || (this.over && stop.zone !== "exit")) await this.dwell();
    }
    this.moving = false;
    if (this.stage && !this.over) this.element.dataset.stage = this.stage;
    if (this.over) await this.leave();
    this.flow.settle();
  }

  dwell() {
    return new Promise((resolve) => setTimeout(resolve, calm.matches ? 0 : DWELL_MS));
  }

  async leave() {
    this.element.classList.add(this.failed ? "failed" : "done");
    if (!calm.matches) await new Promise((resolve) => setTimeout(resolve, this.failed ? 1600 : 350));
    this.element.remove();
    this.flow.dots.delete(this.id);
  }

  async travel(points, pace) {
    const lengths = points.slice(1).map((point, index) => Math.hypot(point.x - points[index].x, point.y - points[index].y));
    const whole = lengths.reduce((sum, length) => sum + length, 0);
    this.put(points[points.length - 1]);
    if (calm.matches || document.hidden || whole < 1) return;
    let gone = 0;
    const frames = points.map((point, index) => {
      if (index) gone += lengths[index - 1];
      return { transform: `translate(${point.x}px, ${point.y}px)`, offset: Math.min(1, gone / whole) };
    });
    const duration = pace * Math.min(1100, Math.max(320, whole * 1.6));
    await this.element.animate(frames, { duration, easing: "cubic-bezier(.45,.05,.35,1)" }).finished.catch(() => {});
  }

  rest(goal, milliseconds) {
    if (Math.hypot(goal.x - this.at.x, goal.y - this.at.y) < 0.5) return;
    const from = this.at;
    this.at = goal;
    this.put(goal);
    if (!milliseconds || calm.matches || document.hidden) return;
    const frames = [from, goal].map(({ x, y }) => ({ transform: `translate(${x}px, ${y}px)` }));
    this.element.animate(frames, { duration: milliseconds, easing: "ease-out" });
  }

  put({ x, y }) {
    this.element.style.transform = `translate(${x}px, ${y}px)`;
  }
}
