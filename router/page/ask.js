// A picture, a question, and the answer as it comes.

import { authorization, events, told } from "./feed.js";
import { html, say } from "./draw.js";
import { summary } from "./requests.js";
import { stageBar } from "./stages.js";

const TIMELINE_PATIENCE_MS = 4000; // within which the feed has told of a request that has ended

const element = (id) => document.getElementById(id);

export class Ask {
  constructor() {
    this.model = "";
    this.picture = null; // a File
    this.abort = null;
    this.waiting = null; // for the feed to tell of the answer's request
    this.drop = element("drop");
    this.error = element("ask-error");
    this.text = element("answer-text");
    this.listen();
  }

  listen() {
    const file = element("picture-file");
    element("choose").addEventListener("click", () => file.click());
    file.addEventListener("change", () => this.take(file.files));
    element("remove").addEventListener("click", () => {
      this.show(null);
      element("choose").focus();
    });
    element("sample").addEventListener("click", async () => this.show(await sample()));
    element("stop").addEventListener("click", () => this.abort?.abort());
    element("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask();
    });
    element("question").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      element("ask").requestSubmit();
    });
    document.addEventListener("paste", (event) => {
      if (event.clipboardData?.files.length) this.take(event.clipboardData.files);
    });
    // Anywhere on the page: a picture that misses the box must not take the page's place.
    document.addEventListener("dragover", (event) => {
      event.preventDefault();
      this.drop.classList.add("over");
    });
    document.addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) this.drop.classList.remove("over");
    });
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      this.drop.classList.remove("over");
      this.take(event.dataTransfer.files);
    });
  }

  take(files) {
    const picture = [...files].find((file) => file.type.startsWith("image/"));
    if (picture) this.show(picture);
    else if (files.length) say(this.error, "that is no picture");
  }

  show(picture) {
    this.picture = picture;
    const preview = element("preview");
    if (preview.src) URL.revokeObjectURL(preview.src);
    preview.hidden = !picture;
    if (picture) preview.src = URL.createObjectURL(picture);
    else preview.removeAttribute("src");
    preview.alt = picture ? `Your picture, ${picture.name}` : "";
    element("remove").hidden = !picture;
    say(element("picture-name"), picture ? `${picture.name}, ${Math.max(1, Math.round(picture.size / 1024))} KB` : "Drop a picture here, paste one, or");
    say(this.error, "");
  }

  async ask() {
    if (this.abort) return;
    this.abort = new AbortController();
    this.busy(true);
    this.text.replaceChildren();
    element("answer-bar").replaceChildren();
    say(this.error, "");
    try {
      const id = await this.stream(await this.body());
      if (id) this.waiting = { id, until: performance.now() + TIMELINE_PATIENCE_MS };
    } catch (error) {
      if (error.name !== "AbortError") say(this.error, error instanceof TypeError ? "the server is out of reach" : error.message);
    } finally {
      this.abort = null;
      this.busy(false);
    }
  }

  async body() {
    const content = [];
    if (this.picture) content.push({ type: "image_url", image_url: { url: await dataURL(this.picture) } });
    content.push({ type: "text", text: element("question").value });
    return { model: this.model, stream: true, messages: [{ role: "user", content }] };
  }

  /** Writes the answer down as it comes; its request's id. Throws what the API says. */
  async stream(body) {
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json", ...authorization() },
      body: JSON.stringify(body),
      signal: this.abort.signal,
    });
    if (!response.ok) throw new Error(await told(response));
    element("answer").hidden = false;
    let id = "";
    for await (const data of events(response)) {
      if (data === "[DONE]") continue; // the end comes next, and leaves the connection for others
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      id = chunk.id.replace(/^chatcmpl-/, "");
      this.text.append(chunk.choices[0]?.delta.content ?? "");
    }
    return id;
  }

  /** Where the answer's time went, once the feed has told. */
  heard({ first, recent, router }) {
    if (first && this.waiting) this.waiting.until = performance.now() + TIMELINE_PATIENCE_MS; // nobody could tell before
    const mine = this.waiting && recent.find((request) => request.id === this.waiting.id);
    if (mine) {
      this.waiting = null;
      const note = html("p", { class: "note" }, sentence(summary(mine)));
      element("answer-bar").replaceChildren(stageBar(mine, mine.seconds), note);
    } else if (this.waiting && performance.now() > this.waiting.until) {
      this.waiting = null;
      const note =
        router.of > 1
          ? "Another router of this server has answered, which alone knows where the time went."
          : "Where the time went is told at the operators’ port.";
      element("answer-bar").replaceChildren(html("p", { class: "note" }, note));
    }
  }

  busy(is) {
    this.text.setAttribute("aria-busy", String(is)); // read out when it is whole
    if (!is && document.activeElement === element("stop")) element("question").focus();
    element("stop").hidden = !is;
    element("send").setAttribute("aria-disabled", String(is));
  }
}

function sentence(text) {
  return text[0].toUpperCase() + text.slice(1);
}

function dataURL(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error("the picture cannot be read"));
    reader.readAsDataURL(file);
  });
}

/** A shape in a colour, for whoever has no picture at hand. */
async function sample() {
  const colours = { red: "#d62828", green: "#2a9d4a", blue: "#2456c8", yellow: "#f2c230", purple: "#7b3fb5" };
  const [name, colour] = Object.entries(colours)[Math.floor(Math.random() * 5)];
  const shape = ["circle", "square", "triangle"][Math.floor(Math.random() * 3)];
  const canvas = html("canvas", { width: 256, height: 256 });
  const pen = canvas.getContext("2d");
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, 256, 256);
  pen.fillStyle = colour;
  pen.beginPath();
  if (shape === "circle") pen.arc(128, 128, 80, 0, 2 * Math.PI);
  else if (shape === "square") pen.rect(54, 54, 148, 148);
  else [[128, 44], [220, 204], [36, 204]].forEach(([x, y]) => pen.lineTo(x, y));
  pen.fill();
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  return new File([blob], `${name} ${shape}.png`, { type: "image/png" });
}
