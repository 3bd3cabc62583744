/** What the page knows, and who wants to hear that it changed. */

import { get, post } from "./api.js";
import { keep, kept } from "./kept.js";

export const app = {
  state: { models: [], model: "", system: "", settings: [], saved: true },
  chat: newChat(),
  answers: new Set(), // answers that are being generated, of any chat
  showsDrafters: kept("drafters") === "on",
};

const listeners = new Map();

/** Call `listener` after each `tell(name)`. */
export function hear(name, listener) {
  listeners.set(name, [...(listeners.get(name) ?? []), listener]);
}

export function tell(name, detail) {
  for (const listener of listeners.get(name) ?? []) listener(detail);
}

export function newChat() {
  return { id: null, title: "", model: null, system: "", settings: {}, turns: [], branches: 1 };
}

/** The model of the next answer. */
export function modelInUse() {
  const names = app.state.models.map((model) => model.name);
  return [app.chat.model, kept("model"), app.state.model].find((name) => names.includes(name)) ?? app.state.model;
}

export const modelNamed = (name) => app.state.models.find((model) => model.name === name);

export function useModel(name) {
  app.chat.model = name;
  keep("model", name);
  tell("model");
}

/** The answer that is being generated in the open chat. */
export const answerHere = () => [...app.answers].find((answer) => answer.isIn(app.chat));

export async function refreshState(options) {
  app.state = await get("/page/state", undefined, options);
  tell("state");
}

export function show(chat) {
  const isOther = chat.id !== app.chat.id;
  app.chat = chat;
  tell(isOther ? "opened" : "chat");
}

/** Read the open chat again. */
export async function refreshChat() {
  const { id } = app.chat;
  if (!id) return;
  const chat = await get("/page/chat", { id });
  if (app.chat.id === id) show({ ...chat, model: chat.model ?? app.chat.model });
}

/** Change the open chat, and show it as it is then. */
export async function change(action, details = {}) {
  const { id } = app.chat;
  const chat = await post("/page/chat", { id, action, ...details });
  if (app.chat.id === id && chat.id === id) show({ ...chat, model: app.chat.model ?? chat.model });
  return chat;
}

/** The value of a setting in the open chat. */
export const valueOf = (setting) => app.chat.settings[setting.name] ?? setting.value;

/** Change settings of the open chat; those of a new chat are sent with its first message. */
export async function set(settings) {
  if (app.chat.id) {
    await change("set", { settings });
  } else {
    for (const { name, value } of app.state.settings) {
      if (!(name in settings)) continue;
      if (settings[name] === value) delete app.chat.settings[name];
      else app.chat.settings[name] = settings[name];
    }
  }
  tell("settings");
}
