/** The list of chats, and the search over all of them. */

import { get, post } from "./api.js";
import { answerHere, app, tell } from "./app.js";
import { chooseBranch } from "./branches.js";
import { ask } from "./dialogs.js";
import { el, find, iconButton } from "./dom.js";
import { moment, period, plural } from "./format.js";
import { icon } from "./icons.js";
import { keep } from "./kept.js";
import { menu } from "./menus.js";
import { toast, told } from "./toasts.js";

const FIRST = 60; // chats in the list before it is scrolled
const MORE = 120;
const MOST_HITS = 50;
const TYPING_MS = 180;
const UNDO_MS = 6000;

export class Chats {
  constructor() {
    this.list = find("#chats");
    this.field = find("#search");
    this.limit = FIRST;
    this.leaving = new Map(); // chats that are deleted when their time is over
    this.shown = [];
    this.field.addEventListener("input", () => this.searchSoon());
    this.field.addEventListener("keydown", (event) => this.fieldPressed(event));
    this.list.addEventListener("keydown", (event) => this.listPressed(event));
    this.end = new IntersectionObserver(([entry]) => entry.isIntersecting && this.longer(), { root: this.list });
    addEventListener("pagehide", () => this.leaving.forEach((_timer, id) => this.deleteNow(id, { keepalive: true })));
  }

  get query() {
    return this.field.value.trim();
  }

  searchSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.refresh(), TYPING_MS);
  }

  async refresh() {
    const { query } = this;
    this.asked = query;
    const limit = query ? MOST_HITS : this.limit;
    try {
      const found = await get("/page/chats", { query, limit });
      if (this.asked === query) this.show(found, query, limit);
    } catch (error) {
      told(error);
    }
    tell("searched", query);
  }

  longer() {
    this.limit += MORE;
    this.refresh();
  }

  show({ chats, hits }, query, limit) {
    const kept = chats.filter((chat) => !this.leaving.has(chat.id));
    this.shown = kept;
    const groups = new Map();
    for (const chat of kept) {
      const heading = query ? "Chats" : headingOf(chat);
      groups.set(heading, [...(groups.get(heading) ?? []), chat]);
    }
    const top = this.list.scrollTop;
    const sections = [...groups].map(([heading, members]) =>
      section(
        heading,
        members.map((chat) => this.row(chat)),
      ),
    );
    if (query && hits.length) sections.push(section("Messages", hits.map(hitRow)));
    if (!sections.length)
      sections.push(el("p", { class: "quiet empty", text: query ? "Nothing found." : "No chats yet." }));
    const sentinel = !query && chats.length >= limit ? el("div", { class: "sentinel" }) : "";
    this.list.replaceChildren(...sections, sentinel);
    this.list.scrollTop = top;
    this.end.disconnect();
    if (sentinel) this.end.observe(sentinel);
    this.mark();
  }

  /** Mark the open chat, and those in which answers are generated. */
  mark() {
    for (const link of this.list.querySelectorAll("a[data-chat]")) {
      const isOpen = link.dataset.chat === app.chat.id && !link.dataset.message;
      if (isOpen) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
      link.classList.toggle(
        "answering",
        [...app.answers].some((answer) => answer.id === link.dataset.chat),
      );
    }
  }

  row(chat) {
    const more = iconButton(
      "more",
      `More for ${chat.title}`,
      (event) => (event.preventDefault(), this.menu(more, chat)),
      { tabindex: "-1" },
    );
    const link = el(
      "a",
      {
        href: `#/chat/${chat.id}`,
        data: { chat: chat.id },
        title: `${chat.title}\n${moment(chat.updated)}, ${plural(chat.turns, "message")}`,
        oncontextmenu: (event) => (event.preventDefault(), this.menu(more, chat)),
      },
      chat.pinned ? icon("pin") : null,
      el("span", { class: "title", dir: "auto", text: chat.title || "New chat" }),
    );
    return el("li", { class: "chat-row" }, link, more);
  }

  menu(button, chat) {
    const { id, title, pinned } = chat;
    menu(
      button,
      [
        { label: "Rename", icon: "edit", run: () => this.rename(id, title) },
        { label: pinned ? "Unpin" : "Pin", icon: "pin", run: () => this.change(id, "pin", { pinned: !pinned }) },
        { label: "Move to a folder", icon: "folder", run: () => this.move(chat) },
        { label: "Fork", icon: "fork", run: () => this.fork(id) },
        id === app.chat.id &&
          app.chat.branches > 1 && {
            label: "Branches",
            about: `${app.chat.branches} of them`,
            icon: "branches",
            run: () => chooseBranch(id),
          },
        null,
        { label: "Export as Markdown", icon: "download", run: () => tell("export", { id, format: "md" }) },
        { label: "Export as JSONL", icon: "download", run: () => tell("export", { id, format: "jsonl" }) },
        null,
        { label: "Delete", icon: "trash", danger: true, run: () => this.delete(id, title) },
      ].filter((item) => item !== false),
      `Chat ${title}`,
    );
  }

  async change(id, action, details) {
    try {
      const chat = await post("/page/chat", { id, action, ...details });
      if (id === app.chat.id) Object.assign(app.chat, { title: chat.title });
      await this.refresh();
      tell("titled", { isKnown: true });
      return chat;
    } catch (error) {
      told(error);
      return null;
    }
  }

  async rename(id, title) {
    const text = await ask("Rename the chat", { value: title, label: "Title", button: "Rename" });
    if (text?.trim()) await this.change(id, "rename", { title: text.trim() });
  }

  async move({ id, folder }) {
    const suggestions = [...new Set(this.shown.map((chat) => chat.folder).filter(Boolean))];
    const text = await ask("Move to a folder", {
      value: folder,
      label: "Folder",
      button: "Move",
      about: "Leave it empty for no folder.",
      suggestions,
    });
    if (text !== null) await this.change(id, "move", { folder: text.trim() });
  }

  async fork(id, key) {
    const chat = await this.change(id, "fork", key ? { key } : {});
    if (chat) location.hash = `#/chat/${chat.id}`;
  }

  /** Delete a chat in a moment; until then it can be undone. */
  delete(id, title) {
    if (answerHere()?.id === id) answerHere().stop();
    const undo = () => {
      clearTimeout(this.leaving.get(id));
      this.leaving.delete(id);
      this.refresh();
    };
    const timer = setTimeout(() => {
      this.deleteNow(id);
      remove();
    }, UNDO_MS);
    const remove = toast(`“${title}” is deleted.`, { action: { label: "Undo", run: undo }, lasts: 0 });
    this.leaving.set(id, timer);
    if (app.chat.id === id) location.hash = "#/";
    this.refresh();
  }

  async deleteNow(id, options) {
    clearTimeout(this.leaving.get(id));
    keep(`draft.${id}`, "");
    try {
      await post("/page/chat", { id, action: "delete" }, options);
    } catch (error) {
      told(error);
    }
    this.leaving.delete(id);
    if (!options) this.refresh();
  }

  focusSearch() {
    this.field.focus();
    this.field.select();
  }

  fieldPressed(event) {
    if (event.key === "Escape" && this.field.value) {
      this.field.value = "";
      this.refresh();
    } else if (event.key === "ArrowDown" || event.key === "Enter") {
      const first = this.list.querySelector("a");
      if (event.key === "Enter") first?.click();
      else first?.focus();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  listPressed(event) {
    const links = [...this.list.querySelectorAll("a")];
    const index = links.indexOf(document.activeElement);
    if (index < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    const chat = this.shown.find((each) => each.id === document.activeElement.dataset.chat);
    if (event.key === "ArrowDown") links[index + 1]?.focus();
    else if (event.key === "ArrowUp") (links[index - 1] ?? this.field).focus();
    else if (event.key === "F2" && chat) this.rename(chat.id, chat.title);
    else if (event.key === "Delete" && chat) this.delete(chat.id, chat.title);
    else if ((event.key === "ContextMenu" || (event.key === "F10" && event.shiftKey)) && chat)
      this.menu(links[index].nextSibling, chat);
    else return;
    event.preventDefault();
  }
}

function headingOf(chat) {
  if (chat.pinned) return "Pinned";
  return chat.folder || period(chat.updated);
}

function section(heading, rows) {
  return el("section", { class: "group" }, el("h2", { dir: "auto", text: heading }), el("ul", {}, rows));
}

function hitRow(hit) {
  return el(
    "li",
    { class: "hit" },
    el(
      "a",
      { href: `#/chat/${hit.chat}/${hit.key}`, data: { chat: hit.chat, message: hit.key } },
      el("span", { class: "title", dir: "auto", text: hit.title }),
      el("span", { class: "snippet", dir: "auto" }, marked(hit.snippet)),
    ),
  );
}

/** A snippet with its matches marked. */
function marked(snippet) {
  return snippet
    .replace(/<\/?think>/g, "")
    .split(/\u0002([^\u0003]*)\u0003/)
    .map((text, index) => (index % 2 ? el("mark", { text }) : text));
}
