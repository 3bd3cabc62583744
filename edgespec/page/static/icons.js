/** Icons: lines in a square of 24 pixels. */

/** An icon as an element that screen readers leave out. */
export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

// prettier-ignore
const ICONS = {
  menu: "M4 7h16M4 12h16M4 17h10",
  plus: "M12 5v14M5 12h14",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14zM16.2 16.2 20.5 20.5",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M8 8h8v8H8z",
  attach: "M20 11.5 12 19.5a5 5 0 0 1-7-7l8.5-8.5a3.4 3.4 0 0 1 4.8 4.8L9.8 17.3a1.7 1.7 0 0 1-2.4-2.4l7.8-7.8",
  copy: "M9 9h10v11H9zM15 9V4H5v11h4",
  check: "M5 12.5 10 17.5 19.5 7",
  edit: "M4 20h4L19.5 8.5l-4-4L4 16zM13 7l4 4",
  again: "M20 11a8 8 0 1 0-2.3 6M20 5v6h-6",
  forward: "M5 6l8 6-8 6zM19 6v12",
  fork: "M6.5 4v16M6.5 10.5c0 3 2 4.5 4.5 4.5h7M14.5 11.5 18 15l-3.5 3.5",
  left: "M14.5 6 8.5 12l6 6",
  right: "M9.5 6l6 6-6 6",
  down: "M6 9.5l6 6 6-6",
  more: "M5.5 11.3a.7.7 0 1 0 0 1.4.7.7 0 0 0 0-1.4zM12 11.3a.7.7 0 1 0 0 1.4.7.7 0 0 0 0-1.4zM18.5 11.3a.7.7 0 1 0 0 1.4.7.7 0 0 0 0-1.4z",
  close: "M6 6l12 12M18 6 6 18",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 4.8v4.4M9 14.8v4.4",
  sun: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM12 3v1.5M12 19.5V21M3 12h1.5M19.5 12H21M5.6 5.6l1.1 1.1M17.3 17.3l1.1 1.1M5.6 18.4l1.1-1.1M17.3 6.7l1.1-1.1",
  moon: "M19.5 14.5A8 8 0 0 1 9.5 4.5a8 8 0 1 0 10 10z",
  system: "M4 5h16v11H4zM9 20h6M12 16v4",
  palette: "M4 5.5h7v5H4zM14 5.5h6v5h-6zM4 13.5h5v5H4zM12 13.5h8v5h-8z",
  race: "M5 21V4M5 5h13l-2.5 4L18 13H5",
  tool: "M14.5 6.5a4 4 0 0 1 5-1.5l-3 3 .8 2 2 .8 3-3a4 4 0 0 1-5.6 4.9L9 20.5a2 2 0 0 1-3-3l7.6-7.6a4 4 0 0 1 .9-3.4z",
  thought: "M9 18h6M10 21h4M8.5 14.5a5.8 5.8 0 1 1 7 0c-.6.5-.8 1-.8 1.6V17h-5.4v-.9c0-.6-.2-1.1-.8-1.6z",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  image: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15.5 9.5h.01",
  pin: "M9 4h6l-1 6 3 3H7l3-3zM12 13v7",
  folder: "M3 6h6l2 2h10v11H3z",
  trash: "M5 7h14M10 4h4M7 7l1 13h8l1-13M10.5 11v5M13.5 11v5",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  undo: "M9 7 4 12l5 5M4 12h10a5 5 0 0 1 0 10h-2",
  branches: "M7 4v16M7 9c6 0 10-1 10-5M17 4h.01M7 4h.01M7 20h.01",
  alert: "M12 8v5M12 16.5h.01M12 3.5 21.5 20h-19z",
  info: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM12 11v5M12 8h.01",
  key: "M8 15a4 4 0 1 1 3.5-2.1L21 12.5M17 12.7V16M8 11h.01",
};
