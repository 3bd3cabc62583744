/** The list of chats as a column or a drawer, and the theme. */

import { find } from "./dom.js";
import { keep, kept } from "./kept.js";

const narrow = matchMedia("(width < 52rem)");
const THEMES = [
  ["", "As the system", "system"],
  ["light", "Light", "sun"],
  ["dark", "Dark", "moon"],
];

/** Show or hide the list of chats. */
export function toggleList(shows) {
  const { body } = document;
  if (narrow.matches) {
    body.classList.toggle("shows-drawer", shows);
    const isShown = body.classList.contains("shows-drawer");
    if (isShown) find("#search").focus({ preventScroll: true });
    else find("#list-button").focus();
  } else {
    body.classList.toggle("hides-list", shows === undefined ? undefined : !shows);
    keep("list", body.classList.contains("hides-list") ? "hidden" : "");
  }
  sayExpanded();
}

/** Close the drawer. Returns whether it was open. */
export function closeList() {
  const wasOpen = document.body.classList.contains("shows-drawer");
  document.body.classList.remove("shows-drawer");
  sayExpanded();
  return wasOpen;
}

function sayExpanded() {
  const { classList } = document.body;
  const isShown = narrow.matches ? classList.contains("shows-drawer") : !classList.contains("hides-list");
  find("#list-button").setAttribute("aria-expanded", String(isShown));
  find("#list").inert = !isShown;
}

export function showTheme() {
  const theme = kept("theme");
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

export function listenToLayout(menu) {
  document.body.classList.toggle("hides-list", kept("list") === "hidden");
  sayExpanded();
  narrow.addEventListener("change", sayExpanded);
  find("#list-button").addEventListener("click", () => toggleList());
  find("#scrim").addEventListener("click", closeList);
  find("#theme").addEventListener("click", ({ currentTarget }) => {
    const choose = (theme) => {
      keep("theme", theme);
      showTheme();
    };
    menu(
      currentTarget,
      THEMES.map(([theme, label, icon]) => ({
        label,
        icon,
        checked: kept("theme") === theme,
        run: () => choose(theme),
      })),
      "Theme",
    );
  });
}
