// Light or dark: the last choice, or else the browser's preference.

const THEME = "temper-view-theme";

function theme(name) {
  document.documentElement.dataset.theme = name;
  try { localStorage.setItem(THEME, name); } catch { /* a page from a file may have no storage */ }
}

function beginTheme() {
  let kept = null;
  try { kept = localStorage.getItem(THEME); } catch { /* likewise */ }
  document.documentElement.dataset.theme = kept || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  $("theme").onclick = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
}

beginTheme();
