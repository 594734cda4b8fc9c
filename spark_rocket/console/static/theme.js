// Before anything is drawn: light or dark, if somebody chose.
"use strict";
{
  let chosen = null;
  try { chosen = localStorage.getItem("rocket-theme"); } catch { /* storage may be closed */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
