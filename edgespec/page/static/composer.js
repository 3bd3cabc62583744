/** The field for messages, with its files; unsent text is kept for each chat. */

import { answerHere, app } from "./app.js";
import { el, find } from "./dom.js";
import { Attachments } from "./files.js";
import { icon } from "./icons.js";
import { keep, kept } from "./kept.js";
import { menu } from "./menus.js";
import { toast } from "./toasts.js";

export class Composer {
  /** `send(text, entries)` sends a message, `race(text)` asks for a race. */
  constructor({ send, race, undo }) {
    Object.assign(this, { send, race, undo });
    this.form = find("#composer");
    this.field = find("#message");
    this.button = find("#send");
    this.picker = find("#file-picker");
    this.files = new Attachments(find("#attached"), () => this.update());
    this.form.addEventListener("submit", (event) => (event.preventDefault(), this.submit()));
    this.field.addEventListener("input", () => this.typed());
    this.field.addEventListener("keydown", (event) => this.pressed(event));
    this.field.addEventListener("paste", (event) => this.pasted(event));
    find("#attach").addEventListener("click", ({ currentTarget }) => this.more(currentTarget));
    this.picker.addEventListener("change", () => {
      this.files.add(this.picker.files);
      this.picker.value = "";
    });
    this.hearDrops();
    this.update();
  }

  get draftName() {
    return `draft.${app.chat.id ?? "new"}`;
  }

  /** Show the unsent text of the open chat. */
  opened() {
    this.fill(kept(this.draftName));
    this.update();
  }

  /** A new chat has got its id: its unsent text belongs to it. */
  named() {
    keep("draft.new", "");
    this.typed();
  }

  fill(text) {
    this.field.value = text;
    this.typed();
  }

  typed() {
    keep(this.draftName, this.field.value);
    if (!CSS.supports("field-sizing", "content")) this.fit();
    this.update();
  }

  /** Make the field as high as its text. */
  fit() {
    this.field.style.height = "auto";
    this.field.style.height = `${this.field.scrollHeight}px`;
  }

  update() {
    const isBusy = Boolean(answerHere());
    const isEmpty = !this.field.value.trim() && !this.files.all.length;
    this.button.disabled = !isBusy && (isEmpty || this.files.isReading);
    this.button.classList.toggle("stops", isBusy);
    const label = isBusy ? "Stop the answer (Esc)" : "Send (Enter)";
    this.button.title = label;
    this.button.setAttribute("aria-label", label);
    this.button.replaceChildren(icon(isBusy ? "stop" : "send"));
  }

  submit() {
    const answer = answerHere();
    if (answer) answer.stop();
    else this.post();
  }

  post() {
    const text = this.field.value;
    if (this.files.isReading) return toast("A file is still being read.");
    if (!text.trim() && !this.files.all.length) return null;
    const entries = this.files.take();
    this.fill("");
    const answer = answerHere();
    return answer ? answer.wait({ text, entries }) : this.send(text, entries);
  }

  /** Put a message back that could not be sent, before what was typed since. */
  restore(text, entries = []) {
    this.fill([text, this.field.value].filter(Boolean).join("\n\n"));
    this.files.put(entries);
    this.field.focus();
  }

  pressed(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.post();
  }

  pasted(event) {
    const { files } = event.clipboardData;
    if (!files.length) return;
    event.preventDefault();
    this.files.add(files);
  }

  more(button) {
    const hasChat = app.chat.turns.length > 0 && !answerHere();
    const items = [
      { label: "Add files", about: "documents, texts, images", icon: "attach", run: () => this.picker.click() },
      {
        label: "Race two settings",
        about: "two answers next to each other",
        icon: "race",
        run: () => this.race(this.field.value),
      },
      hasChat && { label: "Take back the last message", icon: "undo", run: this.undo },
    ];
    menu(button, items.filter(Boolean), "More for this message");
  }

  hearDrops() {
    const cover = el("div", { class: "drop", hidden: true }, icon("attach"), "Drop files to add them to the message");
    document.body.append(cover);
    const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
    addEventListener("dragenter", (event) => hasFiles(event) && (cover.hidden = false));
    addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
    addEventListener("dragleave", (event) => event.relatedTarget === null && (cover.hidden = true));
    addEventListener("drop", (event) => {
      cover.hidden = true;
      if (!hasFiles(event)) return;
      event.preventDefault();
      this.files.add(event.dataTransfer.files);
    });
  }
}
