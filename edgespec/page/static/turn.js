/** One message of a chat on the page. */

import { get } from "./api.js";
import { app, answerHere } from "./app.js";
import { attachmentView } from "./files.js";
import { copy, el, iconButton } from "./dom.js";
import { contextNotice, figuresButton } from "./figures.js";
import { legend, Tokens } from "./drafters.js";
import { moment } from "./format.js";
import { icon } from "./icons.js";
import { Prose } from "./prose.js";
import { parts, Thought } from "./thought.js";
import { told } from "./toasts.js";
import { toolView } from "./tool.js";

const NAMES = { user: "You", assistant: "Answer", tool: "Tool" };

export class TurnView {
  /** `actions` are what can be done with a message; `live` is the view in which its answer was generated. */
  constructor(turn, actions, live = null) {
    this.actions = actions;
    this.live = live;
    this.element = el("article", { class: `turn ${turn.role}`, tabindex: "-1", data: { key: turn.key } });
    this.update(turn);
  }

  /** Show the turn as it is now; its text never changes. `next` is the role of the message after it. */
  update(turn, { isLast = false, next = "" } = {}) {
    const state = JSON.stringify([turn, isLast, next, Boolean(answerHere()), app.showsDrafters]);
    if (state === this.state) return;
    this.state = state;
    Object.assign(this, { turn, isLast, callsTools: next === "tool" });
    this.element.setAttribute("aria-label", `${NAMES[turn.role] ?? turn.role}, ${moment(turn.created)}`);
    this.body ??= this.build();
    this.element.replaceChildren(...[...this.body, this.foot()].filter(Boolean));
    if (this.legend) this.prose.element.before(this.legend);
    this.colour();
  }

  /** Render the text, which until then is shown as it is. */
  render() {
    this.prose?.show();
  }

  build() {
    if (this.turn.role === "assistant") return this.assistant();
    return this.turn.role === "tool" ? this.tool() : this.user();
  }

  user() {
    const { turn } = this;
    const files = turn.files?.length ? el("div", { class: "files" }, turn.files.map(attachmentView)) : null;
    const text = turn.text ? el("div", { class: "bubble", dir: "auto", text: turn.text }) : null;
    return [files, text];
  }

  tool() {
    return [
      toolView(this.turn.tool ?? { name: "", arguments: "", result: this.turn.text, outcome: "ok", summary: "" }),
    ];
  }

  assistant() {
    const { thought, text, start } = parts(this.turn.text);
    const { live } = this;
    const folded = thought ? (live?.thought ?? new Thought(thought)) : null;
    this.prose = live?.prose?.text === text ? live.prose : new Prose(text, { tokens: live?.tokens, start });
    this.tokens = live?.tokens ?? null;
    this.prose.tokens = this.tokens;
    return [folded?.element, this.prose.element];
  }

  foot() {
    const { turn } = this;
    const isAnswer = turn.role === "assistant";
    if (turn.role === "tool" || this.callsTools) return null;
    return el(
      "footer",
      { class: "foot" },
      isAnswer && turn.end
        ? el("p", { class: "notice" }, icon("info"), `The answer is incomplete: ${turn.end}.`)
        : null,
      isAnswer && this.isLast ? contextNotice(turn.stats) : null,
      el("div", { class: "actions" }, this.versions(), this.buttons(), isAnswer ? figuresButton(turn) : null),
    );
  }

  versions() {
    const { versions = [], key } = this.turn;
    if (versions.length < 2) return null;
    const index = versions.indexOf(key);
    const step = (by, name, label) => {
      const to = versions[index + by];
      return iconButton(name, label, () => this.actions.showVersion(to), { disabled: !to || Boolean(answerHere()) });
    };
    return el(
      "span",
      { class: "versions", role: "group", "aria-label": "Versions of this message" },
      step(-1, "left", "Previous version"),
      el("span", { text: `${index + 1}/${versions.length}` }),
      step(1, "right", "Next version"),
    );
  }

  buttons() {
    const { turn, actions } = this;
    const isBusy = Boolean(answerHere());
    const button = (name, label, run) => iconButton(name, label, run, { disabled: isBusy });
    const copyIt = iconButton("copy", "Copy", () => copy(parts(turn.text).text || turn.text, copyIt));
    if (turn.role === "user") {
      return [
        copyIt,
        button("edit", "Edit", () => this.edit()),
        button("fork", "Fork: a new chat up to here", () => actions.fork(turn.key)),
      ];
    }
    return [
      copyIt,
      button("edit", "Edit", () => this.edit()),
      button("again", "Regenerate", () => actions.regenerate(turn.key)),
      this.isLast && turn.end ? button("forward", "Continue this answer", () => actions.goOn()) : null,
      button("fork", "Fork: a new chat up to here", () => actions.fork(turn.key)),
    ];
  }

  /** Let the user change the message. The new text is a new branch; that of a user is answered. */
  edit() {
    if (this.element.querySelector(".editor")) return;
    const field = el("textarea", {
      class: "editor",
      value: this.turn.text,
      "aria-label": "Edit the message",
      dir: "auto",
    });
    const close = () => {
      this.element.replaceChildren(...before);
      this.element.classList.remove("edited");
      this.element.focus({ preventScroll: true });
    };
    const save = () => {
      if (!field.value.trim()) return;
      close();
      this.actions.edit(this.turn, field.value);
    };
    const buttons = el(
      "div",
      { class: "buttons" },
      el("button", { type: "button", class: "button", text: "Cancel", onclick: close }),
      el("button", {
        type: "button",
        class: "button primary",
        text: this.turn.role === "user" ? "Send" : "Save",
        onclick: save,
      }),
    );
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close();
      else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) save();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    const before = [...this.element.childNodes];
    this.element.replaceChildren(field, buttons);
    this.element.classList.add("edited");
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }

  /** Show by colours which drafter proposed each token, or stop to. */
  async colour() {
    const shows = app.showsDrafters && this.turn.role === "assistant";
    if (Boolean(this.shown) === shows) return;
    this.shown = shows;
    if (shows && !this.tokens) {
      try {
        const { tokens } = await get("/page/tokens", { chat: app.chat.id, key: this.turn.key });
        this.tokens = new Tokens(tokens);
      } catch (error) {
        told(error);
        return;
      }
    }
    if (!shows && !this.legend) return;
    this.prose.tokens = this.tokens;
    this.prose.repaint();
    this.legend?.remove();
    this.legend = shows && this.tokens.all.length ? legend(this.tokens) : null;
    if (this.legend) this.prose.element.before(this.legend);
  }
}
