/** The settings of the open chat: the system prompt, and all settings of answers by groups. */

import { app, change, set, tell, valueOf } from "./app.js";
import { dialog } from "./dialogs.js";
import { el, iconButton } from "./dom.js";
import { sentences } from "./format.js";
import { icon } from "./icons.js";
import { told } from "./toasts.js";

const GROUPS = { sampling: "Sampling", answer: "Answer", drafting: "Drafting" };
const LONG = ["constraint", "schema", "stops", "texts"];

export function showSettings() {
  return dialog(
    "Settings of this chat",
    () => {
      const rows = app.state.settings.map((setting) => new Row(setting));
      const groups = Object.entries(GROUPS).map(([group, title]) =>
        el(
          "fieldset",
          {},
          el("legend", { text: title }),
          rows.filter((row) => row.setting.group === group).map((row) => row.element),
        ),
      );
      const search = el("input", { type: "search", placeholder: "Find a setting", "aria-label": "Find a setting" });
      search.addEventListener("input", () => filter(rows, groups, search.value.trim().toLowerCase()));
      const resetAll = async () => {
        await save(
          Object.fromEntries(
            app.state.settings.map(({ name, value }) => [name, value]).filter(([name]) => name in app.chat.settings),
          ),
        );
        rows.forEach((row) => row.update());
      };
      return el(
        "div",
        { class: "settings" },
        systemPrompt(),
        el(
          "div",
          { class: "tools" },
          search,
          el("button", { type: "button", class: "button", text: "Reset all", onclick: resetAll }),
        ),
        groups,
      );
    },
    { name: "drawer" },
  );
}

function systemPrompt() {
  const field = el("textarea", {
    rows: "4",
    value: app.chat.id || app.chat.hasOwnSystem ? app.chat.system : app.state.system,
    placeholder: "Instructions that the model reads before all messages",
    dir: "auto",
    "aria-label": "System prompt",
  });
  field.addEventListener("change", () => saveSystem(field.value));
  return el("label", { class: "system" }, el("span", { class: "name", text: "System prompt" }), field);
}

async function saveSystem(text) {
  if (!app.chat.id) {
    app.chat.system = text;
    app.chat.hasOwnSystem = true;
    tell("settings");
    return;
  }
  try {
    await change("system", { system: text });
    tell("settings");
  } catch (error) {
    told(error);
  }
}

async function save(settings) {
  if (!Object.keys(settings).length) return;
  await set(settings);
}

function filter(rows, groups, words) {
  for (const row of rows) row.element.hidden = !`${row.setting.name} ${row.setting.help}`.toLowerCase().includes(words);
  for (const group of groups) group.hidden = [...group.querySelectorAll(".setting")].every((row) => row.hidden);
}

/** One setting: its name, control and help, and a button that resets it. */
class Row {
  constructor(setting) {
    this.setting = setting;
    this.control = this.makeControl();
    this.control.addEventListener("change", () => this.change(this.text));
    this.reset = iconButton("undo", `Reset ${setting.name}`, () => this.change(setting.value));
    this.problem = el("p", { class: "problem", role: "alert" });
    const help = el("p", { class: "quiet", id: `help-${setting.name}`, text: setting.help });
    this.control.setAttribute("aria-label", setting.name);
    this.control.setAttribute("aria-describedby", help.id);
    this.element = el(
      "div",
      { class: `setting ${LONG.includes(setting.kind) ? "long" : ""}` },
      el("span", { class: "name" }, setting.name, this.reset),
      this.control,
      help,
      this.problem,
    );
    this.update();
  }

  makeControl() {
    const { kind, choices } = this.setting;
    if (kind === "flag") return el("input", { type: "checkbox", role: "switch" });
    if (choices.length)
      return el(
        "select",
        {},
        choices.map((choice) => el("option", { value: choice, text: choice || "none" })),
      );
    if (LONG.includes(kind)) return el("textarea", { rows: "2", spellcheck: "false" });
    const isNumber = kind === "number" || kind === "integer";
    return el("input", {
      type: "text",
      inputmode: isNumber ? "decimal" : null,
      spellcheck: "false",
      autocomplete: "off",
    });
  }

  get text() {
    if (this.setting.kind === "flag") return this.control.checked ? "on" : "off";
    return this.control.value.trim() || this.setting.value;
  }

  update() {
    const value = valueOf(this.setting);
    if (this.setting.kind === "flag") this.control.checked = value === "on";
    else this.showValue(value);
    const isChanged = value !== this.setting.value;
    this.reset.hidden = !isChanged;
    this.element.classList.toggle("changed", isChanged);
    this.problem.textContent = "";
  }

  showValue(value) {
    if (this.control.tagName === "SELECT" && ![...this.control.options].some((option) => option.value === value)) {
      this.control.append(el("option", { value, text: value }));
    }
    this.control.value = value;
  }

  /** The server checks the settings of a chat that it has. */
  check(text) {
    const { kind, name, value } = this.setting;
    const isNumber = kind === "number" || kind === "integer";
    if (!app.chat.id && isNumber && text !== value && Number.isNaN(Number(text)))
      throw new Error(`${name} must be a number`);
  }

  async change(text) {
    try {
      this.check(text);
      await save({ [this.setting.name]: text });
      this.update();
    } catch (error) {
      this.problem.replaceChildren(icon("alert"), sentences(error.message));
    }
  }
}
