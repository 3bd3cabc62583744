/** The model of the next answer: a button that shows it, and the list of models. */

import { app, modelInUse, modelNamed, refreshState, useModel } from "./app.js";
import { el, find } from "./dom.js";
import { bytes, count } from "./format.js";
import { icon } from "./icons.js";
import { menu } from "./menus.js";
import { told } from "./toasts.js";

export function showModel() {
  const button = find("#model");
  const name = modelInUse();
  const state = modelNamed(name)?.state ?? "unloaded";
  button.replaceChildren(
    el("span", { class: `dot ${state}`, title: state }),
    el("span", { class: "title", text: name || "No model" }),
    icon("down"),
  );
  button.setAttribute("aria-label", `Model: ${name}, ${state}`);
  find("#about-model").textContent = about(modelNamed(name));
}

export async function chooseModel() {
  const button = find("#model");
  try {
    await refreshState();
  } catch (error) {
    told(error);
    return;
  }
  const now = modelInUse();
  const items = app.state.models.map((model) => ({
    label: model.name,
    about: about(model),
    checked: model.name === now,
    run: () => useModel(model.name),
  }));
  menu(button, items, "Models");
}

function about(model) {
  if (!model) return "";
  const { parameters, quantisation, bytes: size, context, images, state } = model;
  return [
    parameters && (typeof parameters === "number" ? count(parameters) : parameters),
    quantisation,
    bytes(size),
    context && `context ${count(context)}`,
    images && "reads images",
    state,
  ]
    .filter(Boolean)
    .join(" · ");
}
