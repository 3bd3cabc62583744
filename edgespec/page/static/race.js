/** A race: one message, answered with two settings, next to each other. */

import { change } from "./app.js";
import { dialog, cancelButton } from "./dialogs.js";
import { announce, el } from "./dom.js";
import { gainOf } from "./figures.js";
import { plural, seconds, sentences, speed } from "./format.js";
import { icon } from "./icons.js";
import { Answer, LiveText } from "./live.js";
import { told } from "./toasts.js";

const WITHOUT_DRAFTS = "pace=off";
const IDEAS = ["pace=off", "temp=0", "temp=1", "spec-type=suffix", "spec-type=draft"];

/** Ask for the two settings, and for the message. Resolves to `{text, sides}` or null. */
export function askForRace(text) {
  return dialog(
    "Race two settings",
    (close) => {
      const message = el("textarea", {
        rows: "3",
        "aria-label": "Message",
        value: text,
        placeholder: "A message that both answer",
        dir: "auto",
        autofocus: true,
      });
      const sides = ["", WITHOUT_DRAFTS].map((value, index) =>
        el("input", {
          value,
          "aria-label": `Settings of side ${index + 1}`,
          placeholder: "as they are",
          list: "race-ideas",
          spellcheck: "false",
        }),
      );
      const submit = (event) => {
        event.preventDefault();
        if (message.value.trim()) close({ text: message.value, sides: sides.map((side) => side.value.trim()) });
      };
      return el(
        "form",
        { onsubmit: submit },
        el("p", {
          class: "quiet",
          text: "Both answers have the same seed and run one after the other. Write changes as NAME=VALUE; an empty field means the settings of the chat.",
        }),
        message,
        el("div", { class: "sides" }, el("label", {}, "Left", sides[0]), el("label", {}, "Right", sides[1])),
        el(
          "datalist",
          { id: "race-ideas" },
          IDEAS.map((value) => el("option", { value })),
        ),
        el("div", { class: "buttons" }, cancelButton(close), el("button", { class: "button primary", text: "Start" })),
      );
    },
    { name: "race-dialog" },
  );
}

export class Race extends Answer {
  constructor(body, options) {
    super(body, { ...options, path: "/page/race" });
    this.lanes = body.sides.map((side) => new Lane(side || "settings of the chat"));
    this.verdict = el("div", { class: "verdict", hidden: true });
    this.field = el(
      "section",
      { class: "race", "aria-label": "Race" },
      this.verdict,
      el(
        "div",
        { class: "lanes" },
        this.lanes.map((lane) => lane.element),
      ),
    );
  }

  lane({ lane, title }) {
    if (!this.field.isConnected) this.rows.append(this.field);
    this.status.end();
    this.lanes[lane].begin(title);
  }

  token(event) {
    this.isAccepted = true;
    this.lanes[event.lane].token(event);
  }

  reading(event) {
    if (event.lane === undefined) super.reading(event);
  }

  result({ verdict, lanes }) {
    this.lanes.forEach((lane, index) => lane.finish(lanes[index]));
    const [left, right] = lanes.map(({ stats }) => stats?.tokens_per_s ?? 0);
    if (left && right && left !== right) this.lanes[left > right ? 0 : 1].element.classList.add("faster");
    this.verdict.hidden = false;
    this.verdict.replaceChildren(icon("race"), el("strong", { text: sentences(verdict) }));
    announce(verdict);
  }

  end(event) {
    super.end(event);
    this.lanes.forEach((lane) => lane.offer(event.turn?.key));
  }

  settle() {
    super.settle();
    this.lanes.forEach((lane) => lane.settle());
  }

  /** The race stays on the page until the chat continues. */
  get rest() {
    return this.isAccepted ? [this.field, ...this.notices] : [];
  }
}

class Lane {
  constructor(title) {
    this.title = el("h3", { text: title });
    this.figures = el("p", { class: "lane-figures", text: "waits" });
    this.bar = el("div", { class: "lane-bar" });
    this.body = el("div", { class: "lane-body", tabindex: "0", role: "region", "aria-label": title });
    this.keep = el("div", { class: "lane-keep" });
    this.element = el(
      "div",
      { class: "lane" },
      el("header", {}, this.title, this.figures),
      this.bar,
      this.body,
      this.keep,
    );
    this.element.addEventListener("kept", ({ detail }) => this.offer(detail));
  }

  begin(title) {
    this.title.textContent = title;
    this.text = new LiveText("");
    this.text.element.className = "assistant";
    this.text.onshow = () => (this.body.scrollTop = this.body.scrollHeight);
    this.body.replaceChildren(this.text.element);
    this.element.classList.add("running");
    this.figures.textContent = "reads the prompt…";
    this.n = 0;
  }

  token({ text, drafter, pass }) {
    this.text.add(text, drafter, pass);
    const now = performance.now();
    this.first ??= now;
    this.n += 1;
    if (this.n > 1) this.tell(this.n, (1000 * (this.n - 1)) / (now - this.first), (now - this.first) / 1000);
  }

  tell(n, rate, time) {
    this.figures.textContent = `${speed(rate)} · ${plural(n, "token")} · ${seconds(time)}`;
  }

  finish({ key, title, stats }) {
    this.key = key;
    this.title.textContent = title;
    this.settle();
    if (!stats?.tokens) return;
    this.tell(stats.tokens, stats.tokens_per_s, stats.seconds);
    const gain = gainOf(stats);
    if (gain) this.figures.append(` · ${gain.toFixed(1)}× plain decoding`);
    this.body.scrollTop = 0;
  }

  settle() {
    this.text?.finish();
    this.element.classList.remove("running");
  }

  /** Let the user choose which answer the chat continues with; `key` is the one that it has. */
  offer(key) {
    if (!this.key) return;
    const isKept = this.key === key;
    this.element.classList.toggle("kept", isKept);
    const button = el("button", { type: "button", class: "button", text: "Keep this answer" });
    button.addEventListener("click", () => this.choose(button));
    this.keep.replaceChildren(
      isKept ? el("span", { class: "quiet" }, icon("check"), "The chat continues with this answer") : button,
    );
  }

  async choose(button) {
    button.disabled = true;
    try {
      await change("switch", { key: this.key });
      for (const lane of this.element.parentElement.children)
        lane.dispatchEvent(new CustomEvent("kept", { detail: this.key }));
    } catch (error) {
      told(error);
    }
    button.disabled = false;
  }
}
