// Where the parts of the page are told what the router says.

import { Ask } from "./ask.js";
import { count, plural, say } from "./draw.js";
import { Feed, keepKey, key } from "./feed.js";
import { Flow } from "./flow.js";
import { Gauges } from "./gauges.js";
import { Requests } from "./requests.js";
import { showLegends } from "./stages.js";
import { showChannels, Workers } from "./workers.js";

const element = (id) => document.getElementById(id);

const announce = (text) => say(element("said"), text);
const workers = new Workers(announce);
const flow = new Flow(element("triptych"), element("flow"), workers);
const gauges = new Gauges(element("gauges"));
const requests = new Requests(element("requests"), element("requests-empty"), element("requests-scale"));
const ask = new Ask();
let isLost = false;

showLegends(element("legend"), element("bar-legend"));

function heard(snapshot) {
  if (snapshot.first) {
    requests.clear();
    gauges.begin(snapshot.router.number);
    element("key").hidden = true;
  }
  if (isLost) announce("The connection is back");
  isLost = false;
  element("triptych").classList.remove("stale");
  say(element("model"), snapshot.model);
  ask.model = snapshot.model;
  if (workers.show(snapshot.workers)) flow.lay();
  showChannels(snapshot.workers);
  flow.show(snapshot);
  requests.add(snapshot.recent);
  ask.heard(snapshot);
  say(element("in-flight"), count(snapshot.num_running));
  say(element("token-rate"), count(gauges.show(snapshot)));
  showHealth(snapshot);
  showWhere(snapshot);
}

function showHealth({ workers: all }) {
  const missing = ["encode", "prefill", "decode"].filter(
    (role) => !all.some((worker) => worker.state === "ready" && worker.roles.includes(role)),
  );
  const ready = all.filter((worker) => worker.state === "ready").length;
  const health = element("health");
  health.dataset.state = missing.length ? "down" : ready < all.length ? "partly" : "well";
  const words = ready === all.length ? `All ${plural(ready, "worker")} ready` : `${ready} of ${plural(all.length, "worker")} ready`;
  say(health, !all.length ? "No workers yet" : missing.length ? `${words}; no ${missing.join(", no ")}` : words);
}

function showWhere({ router, viewer, answers_here: answersHere }) {
  const told = ["One snapshot a second, and one at each change."];
  if (router.of > 1) told.push(`Requests are those of router ${router.number} of ${router.of}; workers are everybody’s.`);
  if (viewer !== "operator") told.push("Load, and requests of others, are for operators.");
  say(element("footing"), told.join(" "));
  const isNobody = viewer !== "operator" && !key(); // whose requests cannot be told from others'
  say(element("requests-empty"), isNobody ? "Requests are shown at the operators’ port." : "None yet. Ask something, and see where its time goes.");
  element("ask").hidden = !answersHere;
  element("ask-elsewhere").hidden = answersHere;
  element("forget").hidden = !key();
}

function lost(why) {
  isLost = true;
  element("triptych").classList.add("stale"); // what it shows has been so
  element("health").dataset.state = "lost";
  say(element("health"), `No connection: ${why}`);
  announce(`No connection: ${why}`);
}

function refused(why) {
  element("triptych").classList.add("stale");
  gauges.clear(); // the next key may see less
  element("key").hidden = false;
  element("forget").hidden = true;
  element("health").dataset.state = "waiting";
  say(element("health"), "Waiting for a key");
  say(element("key-error"), key() ? why : "");
  element("key-field").focus();
}

const feed = new Feed({ heard, lost, refused });

element("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepKey(element("key-field").value.trim());
  element("key-field").value = "";
  feed.retry();
});

element("forget").addEventListener("click", () => {
  keepKey("");
  location.reload(); // what the key has shown is not for whoever sits here next
});
