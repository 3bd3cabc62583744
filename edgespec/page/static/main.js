/** Puts the parts of the page together. */

import { get, getBlob, hooks, useKey } from "./api.js";
import { answerHere, app, change, hear, modelInUse, newChat, refreshChat, refreshState, show, tell } from "./app.js";
import { Chats } from "./chats.js";
import { Composer } from "./composer.js";
import { connectionLost, hearRestored } from "./connection.js";
import { askForKey } from "./dialogs.js";
import { announce, copy, el, find } from "./dom.js";
import { icon } from "./icons.js";
import { keep, kept } from "./kept.js";
import { listen, showShortcuts } from "./keys.js";
import { Answer } from "./live.js";
import { markMatches } from "./matches.js";
import { menu } from "./menus.js";
import { chooseModel, showModel } from "./models.js";
import { askForRace, Race } from "./race.js";
import { showSettings } from "./settings.js";
import { closeList, listenToLayout, showTheme, toggleList } from "./layout.js";
import { parts } from "./thought.js";
import { told } from "./toasts.js";
import { Transcript } from "./transcript.js";

const actions = {
  regenerate: (key) => generate({ action: "regenerate", key }, { after: before(key) }),
  edit: ({ key, role }, text) =>
    generate({ action: "edit", key, text }, { after: before(key), isSent: role === "user" }),
  goOn: () =>
    generate({ action: "continue" }, { after: before(app.chat.turns.at(-1).key), begun: app.chat.turns.at(-1).text }),
  showVersion: (key) =>
    change("switch", { key })
      .then(() => transcript.goTo(key))
      .catch(told),
  fork: (key) => chats.fork(app.chat.id, key),
};

for (const each of document.querySelectorAll("[data-icon]")) each.append(icon(each.dataset.icon));
const transcript = new Transcript(actions);
const chats = new Chats();
const composer = new Composer({ send, race, undo: takeBack });

/** The key of the message before another. */
function before(key) {
  const index = app.chat.turns.findIndex((turn) => turn.key === key);
  return app.chat.turns[index - 1]?.key ?? null;
}

/** What a request for an answer says about the chat. */
function about(chat) {
  const body = { chat: chat.id, model: modelInUse() };
  if (chat.id) return body;
  return { ...body, settings: chat.settings, ...(chat.hasOwnSystem ? { system: chat.system } : {}) };
}

/** Send a message, and after its answer those that are `queued`. */
function send(text, entries, queued = []) {
  const body = { action: "ask", text, files: entries.map((entry) => entry.file) };
  return generate(body, { after: app.chat.turns.at(-1)?.key ?? null, text, entries, queued });
}

/** Send the messages that were written during an answer, or put them back if the chat did not go on as expected. */
function sendQueued(answer) {
  const [next, ...rest] = answer.queued;
  if (!next) return;
  const isHere = answer.isIn(app.chat);
  if (isHere && answer.isDone) {
    send(next.text, next.entries, rest);
    return;
  }
  answer.queue.remove();
  const text = answer.queued.map((each) => each.text).join("\n\n");
  if (isHere)
    composer.restore(
      text,
      answer.queued.flatMap((each) => each.entries),
    );
  else keep(`draft.${answer.id}`, [kept(`draft.${answer.id}`), text].filter(Boolean).join("\n\n"));
}

/** Generate an answer; if it cannot begin, `text` and `entries` are put back into the field. */
async function generate(body, { after, begun, isSent, text = body.text, entries = [], queued = [] }) {
  const answer = new Answer({ ...about(app.chat), ...body }, { after, begun, isSent, actions });
  for (const message of queued) answer.wait(message);
  return run(answer, text, entries);
}

async function race(text) {
  const asked = await askForRace(text);
  if (!asked) return;
  const { all } = composer.files;
  const entries = all.length ? composer.files.take() : [];
  composer.fill("");
  const body = { ...about(app.chat), action: "ask", ...asked, files: entries.map((entry) => entry.file) };
  await run(new Race(body, { after: app.chat.turns.at(-1)?.key ?? null, actions }), asked.text, entries);
}

async function run(answer, text, entries = []) {
  if (answerHere()) return;
  const { notices } = transcript;
  transcript.notices = [];
  const done = answer.run();
  transcript.update();
  transcript.toEnd();
  await done;
  if (!answer.isAccepted) putBack(answer, notices, text, entries);
  sendQueued(answer);
}

/** A message could not be sent: show the chat as it was, and have the message in the field. */
function putBack(answer, notices, text, entries) {
  transcript.notices = notices;
  transcript.update();
  if (answer.failure) {
    told(answer.failure);
    refreshChat().catch(() => {}); // another program may have changed the chat
  }
  if (text && answer.isIn(app.chat)) composer.restore(text, entries);
}

async function takeBack() {
  try {
    const { text } = await change("undo");
    if (text) composer.restore(text);
  } catch (error) {
    told(error);
  }
}

/** Open what the address says: "#/chat/ID", "#/chat/ID/MESSAGE", or a new chat. */
async function openAddress() {
  const [, id, key] = /^#\/chat\/([^/]+)(?:\/(.+))?$/.exec(location.hash) ?? [];
  closeList();
  if (id && id === app.chat.id) return key && showMessage(key);
  if (!id) return show(newChat());
  const answering = [...app.answers].find((answer) => answer.id === id);
  try {
    show(await get("/page/chat", { id }));
    if (answering) answering.chat = app.chat;
    if (key) await showMessage(key);
  } catch (error) {
    told(error);
    location.hash = "#/";
  }
  return null;
}

async function showMessage(key) {
  try {
    if (!app.chat.turns.some((turn) => turn.key === key)) await change("switch", { key });
    transcript.goTo(key);
    markMatches(chats.query);
  } catch (error) {
    told(error);
  }
}

function showTitle() {
  const { title } = app.chat;
  document.title = title ? `${title} · edgespec` : "edgespec";
  find("#title").textContent = title || "New chat";
  find("#chat-menu").hidden = !app.chat.id;
}

function showDrafters() {
  const button = find("#drafters");
  button.setAttribute("aria-pressed", String(app.showsDrafters));
}

function toggleDrafters() {
  app.showsDrafters = !app.showsDrafters;
  keep("drafters", app.showsDrafters ? "on" : "");
  showDrafters();
  transcript.update();
  announce(app.showsDrafters ? "Tokens have the colours of their drafters." : "No colours.");
}

async function exportChat({ id, format }) {
  try {
    const url = URL.createObjectURL(await getBlob("/page/export", { id, format }));
    const title = chats.shown.find((chat) => chat.id === id)?.title ?? app.chat.title;
    el("a", {
      href: url,
      download: `${title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60) || "chat"}.${format}`,
    }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  } catch (error) {
    told(error);
  }
}

function openChat() {
  return {
    id: app.chat.id,
    folder: "",
    pinned: false,
    ...chats.shown.find((chat) => chat.id === app.chat.id),
    title: app.chat.title,
  };
}

hooks.unreachable = connectionLost;
let asking = null; // several requests at once ask for the key once
hooks.askForKey = (error, wasWrong) => {
  asking ??= askForKey(error, wasWrong).then((answer) => {
    asking = null;
    if (answer) useKey(answer.key, answer.remember);
    return Boolean(answer);
  });
  return asking;
};

hear("opened", () => {
  transcript.notices = [];
  transcript.update({ isOpened: true });
  composer.opened();
  showTitle();
  showModel();
  chats.mark();
});
hear("chat", () => {
  transcript.update();
  showTitle();
});
hear("titled", (detail) => {
  showTitle();
  if (detail?.isNew) composer.named();
  if (app.chat.id && !location.hash.startsWith(`#/chat/${app.chat.id}`))
    history.replaceState(null, "", `#/chat/${app.chat.id}`);
  if (!detail?.isKnown) chats.refresh();
});
hear("answers", () => {
  composer.update();
  chats.mark();
});
hear("answered", (answer) => {
  if (answer.isIn(app.chat)) transcript.notices = answer.rest;
  transcript.update();
  if (answer.field?.isConnected) transcript.showStart(answer.field);
  composer.update();
  chats.mark();
  chats.refresh();
  refreshState({ quiet: true }).catch(() => {});
});
hear("state", () => {
  showModel();
  find("#version").textContent = `edgespec ${app.state.version}`;
  find("#not-saved").hidden = app.state.saved;
});
hear("model", showModel);
hear("export", exportChat);
hear("searched", markMatches);
hear("settings", () => find("#settings").classList.toggle("changed", Object.keys(app.chat.settings).length > 0));
hearRestored(async () => {
  await refreshState();
  transcript.notices = [];
  await refreshChat();
  await chats.refresh();
});

const newChatHere = () => {
  if (location.hash === "#/" || !location.hash) show(newChat());
  location.hash = "#/";
  find("#message").focus();
};
find("#new-chat").addEventListener("click", newChatHere);
find("#model").addEventListener("click", chooseModel);
find("#settings").addEventListener("click", showSettings);
find("#drafters").addEventListener("click", toggleDrafters);
find("#keys").addEventListener("click", showShortcuts);
find("#chat-menu").addEventListener("click", ({ currentTarget }) => chats.menu(currentTarget, openChat()));
addEventListener("hashchange", openAddress);

const onMessage = (act) => () => {
  const view = transcript.focused;
  return view ? act(view) : false;
};
const step =
  (by) =>
  ({ turn }) => {
    const to = turn.versions?.[turn.versions.indexOf(turn.key) + by];
    return to && !answerHere() ? actions.showVersion(to) : false;
  };
listen({
  search: () => (toggleList(true), chats.focusSearch()),
  newChat: newChatHere,
  list: () => toggleList(),
  settings: showSettings,
  model: chooseModel,
  shortcuts: showShortcuts,
  drafters: toggleDrafters,
  previous: () => transcript.step(-1),
  next: () => transcript.step(1),
  escape: () => {
    if (answerHere()) answerHere().stop();
    else if (!closeList()) find("#message").focus();
  },
  editLast: ({ target }) => {
    if (target.id !== "message" || target.value || answerHere()) return false;
    const last = app.chat.turns.findLast((turn) => turn.role === "user");
    return last ? (transcript.goTo(last.key), transcript.views.get(last.key).edit()) : false;
  },
  copy: onMessage(({ turn }) => copy(parts(turn.text).text || turn.text).then(() => announce("Copied"))),
  edit: onMessage((view) => (answerHere() || view.turn.role === "tool" ? false : view.edit())),
  regenerate: onMessage(({ turn }) =>
    turn.role === "assistant" && !answerHere() ? actions.regenerate(turn.key) : false,
  ),
  fork: onMessage(({ turn }) => actions.fork(turn.key)),
  versionBefore: onMessage(step(-1)),
  versionAfter: onMessage(step(1)),
});

listenToLayout(menu);
showTheme();
showDrafters();
transcript.update();
try {
  await refreshState();
} catch (error) {
  told(error);
}
await Promise.all([openAddress(), chats.refresh()]);
composer.opened();
showTitle();
if (!matchMedia("(pointer: coarse)").matches) find("#message").focus();
document.body.classList.add("is-ready");

// Now there is time for what the first code and the first formula need.
for (const library of ["highlight", "katex"])
  (globalThis.requestIdleCallback ?? setTimeout)(() => import(`./vendor/${library}.min.js`));
