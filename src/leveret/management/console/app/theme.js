// Light and dark: the system's preference until the user chooses.

import { signal } from "./html.js";

const KEY = "leveret.theme";
const system = matchMedia("(prefers-color-scheme: dark)");

/** The theme that is shown: "light" or "dark". */
export const theme = signal("light");

function apply() {
  theme.value = localStorage.getItem(KEY) ?? (system.matches ? "dark" : "light");
  document.documentElement.dataset.theme = theme.value;
}

/** Changes to the other theme. Choosing the system's theme forgets the choice. */
export function toggleTheme() {
  const next = theme.value === "dark" ? "light" : "dark";
  if (next === (system.matches ? "dark" : "light")) {
    localStorage.removeItem(KEY);
  } else {
    localStorage.setItem(KEY, next);
  }
  apply();
}

system.addEventListener("change", apply);
apply();
