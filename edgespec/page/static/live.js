/** An answer while it is generated: it hears the server's events, and shows them. */

import { ApiError, events, Unreachable } from "./api.js";
import { app, refreshChat, tell } from "./app.js";
import { announce, el, iconButton } from "./dom.js";
import { Tokens } from "./drafters.js";
import { count, plural, sentences, speed } from "./format.js";
import { icon } from "./icons.js";
import { Prose } from "./prose.js";
import { parts, Thought } from "./thought.js";
import { callView } from "./tool.js";
import { TurnView } from "./turn.js";

const SAVED_AFTER_MS = [60, 200, 600, 1500]; // the server saves an answer that was stopped in a moment
const MOST_FINISHED = 30;
const UNFINISHED = "not finished yet";
const SPEED_EVERY_MS = 250;
const HEARD = new Set([
  "named",
  "loading",
  "waiting",
  "reading",
  "turn",
  "token",
  "call",
  "notice",
  "error",
  "end",
  "lane",
  "result",
]);

/** Views of answers that were generated on this page, by their keys: they stay when the chat is read again. */
export const finished = new Map();

export class Answer {
  /**
   * `after` is the key of the message that the answer follows, and `begun` the text that it continues.
   * `isSent` is true if `body.text` is a message of the user.
   */
  constructor(body, { after = null, begun = "", isSent = true, actions, path = "/page/answer" }) {
    Object.assign(this, { body, after, begun, actions, path });
    this.chat = app.chat;
    this.id = app.chat.id;
    this.isAccepted = false; // by the server
    this.isRead = false; // as it was saved
    this.hasFailed = false; // in the middle, as the server says
    this.failure = null; // of the connection, or of a request that was refused
    this.controller = new AbortController();
    this.calls = new Map();
    this.notices = [];
    this.status = new Status();
    this.queued = []; // messages that are sent after the answer
    this.rows = el("div", { class: "rows" });
    this.queue = el("div");
    this.element = el("div", { class: "live", "aria-busy": "true" }, this.rows, this.status.element, this.queue);
    this.sent =
      body.text && isSent
        ? el("div", { class: "turn user" }, el("div", { class: "bubble", dir: "auto", text: body.text }))
        : "";
    this.rows.append(this.sent); // until the server has the message
  }

  /** What stays on the page after the answer and is not saved with the chat. */
  get rest() {
    return this.isRead || !this.isAccepted ? this.notices : [this.element];
  }

  isIn(chat) {
    return this.chat === chat || (this.id !== null && this.id === chat.id);
  }

  /** Send a message when the answer is finished: `{text, entries}`. */
  wait(message) {
    const remove = () => {
      this.queued = this.queued.filter((each) => each !== message);
      element.remove();
    };
    const element = el(
      "div",
      { class: "turn user queued" },
      el("div", { class: "bubble", dir: "auto", text: message.text || "Files" }),
      el(
        "div",
        { class: "actions" },
        "Sent after this answer",
        iconButton("close", "Do not send this message", remove),
      ),
    );
    this.queued.push(message);
    this.queue.append(element);
  }

  /** Whether the chat can go on: the answer was neither stopped nor did it fail. */
  get isDone() {
    return this.isAccepted && !this.failure && !this.hasFailed && !this.controller.signal.aborted;
  }

  stop() {
    this.status.say("Stopping…");
    this.controller.abort();
  }

  /** Generate the answer. `isAccepted` is false afterwards if the message was not sent, and `failure` says why. */
  async run() {
    app.answers.add(this);
    tell("answers");
    try {
      for await (const event of events(this.path, this.body, this.controller.signal)) this.on(event);
    } catch (error) {
      if (error.name !== "AbortError") this.failure = error;
    }
    this.settle();
    if (this.failure && this.isAccepted) this.notice({ text: this.failure.message, level: "error" });
    await this.readAgain();
    app.answers.delete(this);
    tell("answered", this);
  }

  on(event) {
    const name = event.type === "chat" ? "named" : event.type;
    if (HEARD.has(name)) this[name](event);
  }

  named({ id, title }) {
    this.isAccepted = true;
    this.id = id;
    if (!this.isIn(app.chat)) return tell("titled");
    const isNew = app.chat.id === null;
    this.chat = app.chat;
    Object.assign(app.chat, { id, title });
    return tell("titled", { isNew });
  }

  loading({ what, done }) {
    this.status.say(`Loading ${what}…`, done);
  }

  waiting({ n }) {
    this.status.say(`Waiting for ${plural(n, "other answer")}…`);
  }

  reading({ total, cached, done }) {
    if (total <= done) return this.status.say("Reading the prompt…");
    const share = total > cached ? (done - cached) / (total - cached) : 1;
    return this.status.say(`Reading the prompt: ${count(done)} of ${count(total)} tokens`, Math.max(0, share));
  }

  turn({ turn }) {
    this.isAccepted = true;
    if (turn.key === this.after) return;
    if (turn.role === "assistant") {
      this.keepText(turn);
      this.text = null;
      return;
    }
    if (turn.role === "user" && this.sent) this.sent.remove();
    if (turn.role === "tool") this.removeFirstCall();
    this.rows.append(new TurnView(turn, this.actions).element);
  }

  /** Keep the view of an answer for when its chat is read again. */
  keepText({ key }) {
    if (!this.text) return;
    this.text.finish();
    finished.set(key, this.text);
    if (finished.size > MOST_FINISHED) finished.delete(finished.keys().next().value);
  }

  /** The results of calls come in the order of the calls. */
  removeFirstCall() {
    const [id] = this.calls.keys();
    this.calls.get(id)?.remove();
    this.calls.delete(id);
  }

  token({ text, drafter, pass }) {
    this.isAccepted = true;
    this.text ??= this.newText();
    this.text.add(text, drafter, pass);
    this.status.count();
  }

  newText() {
    const text = new LiveText(this.begun);
    this.begun = "";
    this.rows.append(text.element);
    return text;
  }

  call(event) {
    const view = callView(event);
    const before = this.calls.get(event.id);
    if (event.state === "done") return;
    if (before) before.replaceWith(view);
    else this.rows.append(view);
    this.calls.set(event.id, view);
    this.status.end();
    if (event.state === "asking") announce(`The model wants to call ${event.name}.`);
  }

  notice({ text, level = "info" }) {
    const element = el("p", { class: `notice ${level}` }, icon(level === "info" ? "info" : "alert"), sentences(text));
    this.notices.push(element);
    this.rows.append(element);
  }

  error({ message, hint = "" }) {
    if (!this.isAccepted) throw new ApiError({ message, hint });
    this.hasFailed = true;
    this.notice({ text: sentences(message, hint), level: "error" });
  }

  end({ turn, chat }) {
    if (turn?.role === "assistant") this.keepText(turn);
    this.settle();
    if (chat) this.named(chat);
    if (turn) announce(parts(turn.text).text || "The answer is finished.");
  }

  settle() {
    this.text?.finish();
    this.status.end();
    this.element.removeAttribute("aria-busy");
  }

  /** Read the chat as it was saved; for an answer that was stopped, when it is saved. */
  async readAgain() {
    if (!this.isIn(app.chat) || !this.id || this.failure instanceof Unreachable) return;
    const waits = this.controller.signal.aborted ? SAVED_AFTER_MS : [0];
    for (const wait of waits) {
      if (wait) await new Promise((resolve) => setTimeout(resolve, wait));
      app.answers.delete(this);
      try {
        await refreshChat();
      } catch {
        return; // the server is gone: what was generated stays on the page
      }
      this.isRead = true;
      if (app.chat.turns.at(-1)?.end !== UNFINISHED) return;
    }
  }
}

/** The text of an answer as it grows. */
export class LiveText {
  constructor(begun) {
    this.whole = begun;
    this.tokens = new Tokens(begun ? [[begun, "", 0]] : []);
    this.element = el("article", { class: "turn assistant growing", "aria-label": "Answer" });
    this.prose = new Prose("", { tokens: this.tokens });
    this.thought = null;
    this.since = performance.now();
  }

  add(text, drafter, pass) {
    this.tokens.add(text, drafter, pass);
    this.whole += text;
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.show();
      this.onshow?.();
    });
  }

  show() {
    if ("<think>".startsWith(this.whole.trimStart())) return; // reasoning may begin here
    const { thought, isClosed, text, start } = parts(this.whole);
    if ((thought || !isClosed) && !this.thought) {
      this.thought = new Thought("", { isOpen: true });
      this.element.prepend(this.thought.element);
    }
    if (this.thought && !isClosed) this.thought.grow(thought);
    if (this.thought && isClosed && !this.isThought) {
      this.isThought = true;
      this.thought.close(thought, (performance.now() - this.since) / 1000);
    }
    if (!text) return;
    if (!this.prose.element.isConnected) {
      this.prose.place = this.prose.start = start;
      this.element.append(this.prose.element);
    }
    this.prose.grow(text);
  }

  finish() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.show();
    const { thought, isClosed } = parts(this.whole);
    if (this.thought && !isClosed) this.thought.close(thought, (performance.now() - this.since) / 1000);
    this.prose.finish();
    this.element.classList.remove("growing");
  }
}

/** The line below the answer: what happens now, or how fast it is. */
export class Status {
  constructor() {
    this.label = el("span", { text: "Waiting for the server…" });
    this.bar = el("progress", { max: "1", hidden: true, "aria-label": "Progress" });
    this.element = el("div", { class: "status" }, el("span", { class: "pulse" }), this.label, this.bar);
    this.n = 0;
    this.shownAt = 0;
  }

  say(text, done = null) {
    this.element.hidden = false;
    this.label.textContent = text;
    this.bar.hidden = done === null || done === undefined;
    if (!this.bar.hidden) this.bar.value = done;
  }

  count() {
    const now = performance.now();
    this.first ??= now;
    this.n += 1;
    if (now - this.shownAt < SPEED_EVERY_MS || now === this.first) return;
    this.shownAt = now;
    this.say(`${speed((1000 * (this.n - 1)) / (now - this.first))} · ${plural(this.n, "token")}`);
  }

  end() {
    this.element.hidden = true;
  }
}
