// Before anything is drawn: the theme that the reader chose last, or that of the system.
(function () {
  "use strict";
  var stored = null;
  try {
    stored = window.localStorage.getItem("protosphere-theme");
  } catch (error) {
    // Storage may be switched off.
  }
  var dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  if (stored !== "light" && stored !== "dark") {
    stored = dark ? "dark" : "light";
  }
  document.documentElement.dataset.theme = stored;
})();
