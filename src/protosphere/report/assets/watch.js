// Follows runs in progress: asks the server for a newer page and takes over what has changed.
(function () {
  "use strict";

  var INTERVAL_MS = 2000;
  var page = window.protosphereReport;
  var version = "@VERSION@";
  var asking = false;
  var timer = null;
  var written = htmlOfSections(document); // Before figures are drawn into it.

  var line = document.createElement("p");
  line.className = "live";
  document.querySelector(".masthead-text").appendChild(line);

  function all(selector, parent) {
    return Array.prototype.slice.call((parent || document).querySelectorAll(selector));
  }

  function htmlOfSections(source) {
    var html = {};
    all("main > section", source).forEach(function (section) {
      html[section.id] = section.outerHTML;
    });
    return html;
  }

  function say(text, isProblem) {
    line.textContent = text;
    line.classList.toggle("problem", isProblem);
  }

  function ask() {
    clearTimeout(timer);
    if (asking) {
      return;
    }
    if (document.hidden) {
      return; // Asked again when the page is shown.
    }
    asking = true;
    fetch("/version", { cache: "no-store" })
      .then(function (response) { return response.json(); })
      .then(function (answer) {
        return answer.version === version ? answer : load(answer);
      })
      .then(
        function (answer) {
          say(answer.problem || "This page updates while runs are in progress.",
            Boolean(answer.problem));
        },
        function () {
          say("The server does not answer; the page shows what it sent last.", true);
        }
      )
      .then(function () {
        asking = false;
        timer = setTimeout(ask, INTERVAL_MS);
      });
  }

  function load(answer) {
    return fetch("/", { cache: "no-store" })
      .then(function (response) { return response.text(); })
      .then(function (text) {
        update(new DOMParser().parseFromString(text, "text/html"));
        version = answer.version;
        return answer;
      });
  }

  function update(fresh) {
    var anchor = findAnchor();
    var focused = document.activeElement && document.activeElement.id;
    document.title = fresh.title;
    ["h1", ".subtitle"].forEach(function (selector) {
      document.querySelector(selector).textContent = fresh.querySelector(selector).textContent;
    });
    var changed = updateData(fresh);
    updateSections(fresh);
    document.querySelector(".contents").replaceChildren(
      document.importNode(fresh.querySelector(".contents ol"), true)
    );
    page.markSection();
    all(".plot").forEach(function (plot) {
      if (changed[plot.dataset.figure] || plot.look === null) {
        page.refresh(plot);
      }
    });
    if (focused && document.getElementById(focused)) {
      document.getElementById(focused).focus({ preventScroll: true });
    }
    restore(anchor);
  }

  // Take over the data of figures, and return the names of those that have changed.
  function updateData(fresh) {
    var selector = 'script[type="application/json"]';
    var changed = {};
    var current = {};
    all(selector).forEach(function (script) { current[script.id] = script; });
    all(selector, fresh).forEach(function (script) {
      var old = current[script.id];
      delete current[script.id];
      if (!old) {
        document.body.appendChild(document.importNode(script, true));
      } else if (old.textContent !== script.textContent) {
        old.textContent = script.textContent;
        changed[script.id.replace(/-data$/, "")] = true;
      }
    });
    Object.keys(current).forEach(function (id) { current[id].remove(); });
    return changed;
  }

  function updateSections(fresh) {
    var main = document.getElementById("main");
    var next = htmlOfSections(fresh);
    var previous = null;
    all("main > section").forEach(function (section) {
      if (!(section.id in next)) {
        remove(section);
      }
    });
    all("main > section", fresh).forEach(function (section) {
      var old = document.getElementById(section.id);
      var shown = old;
      if (!old || written[section.id] !== next[section.id]) {
        shown = document.importNode(section, true);
        if (old) {
          replace(old, shown);
        } else {
          main.insertBefore(shown, previous ? previous.nextSibling : main.querySelector("section"));
        }
        all(".plot", shown).forEach(page.observe);
      }
      previous = shown;
    });
    written = next;
  }

  // Replace a section; drawn figures, selected options and scrolled tables stay as they are.
  function replace(old, shown) {
    all("select", shown).forEach(function (menu) {
      var before = document.getElementById(menu.id);
      var text = before && before.options[before.selectedIndex].text;
      var index = Array.prototype.findIndex.call(menu.options, function (option) {
        return option.text === text;
      });
      menu.selectedIndex = Math.max(index, 0);
      all("figure", menu.closest(".choice")).forEach(function (figure) {
        figure.hidden = figure.id !== menu.value;
      });
    });
    all(".plot", shown).forEach(function (plot) {
      var before = old.querySelector('.plot[data-figure="' + plot.dataset.figure + '"]');
      if (before && before.dataset.state !== "failed") {
        if (before.dataset.height !== plot.dataset.height) {
          before.dataset.height = plot.dataset.height;
          before.look = null; // It is drawn again.
        }
        before.setAttribute("aria-label", plot.getAttribute("aria-label"));
        plot.replaceWith(before);
      }
    });
    var places = all(".scroll", old).map(function (box) { return [box.scrollLeft, box.scrollTop]; });
    old.replaceWith(shown);
    all(".scroll", shown).forEach(function (box, index) {
      if (places[index]) {
        box.scrollTo({ left: places[index][0], top: places[index][1], behavior: "instant" });
      }
    });
    purge(old);
    all(".choice", shown).forEach(page.showSelected);
  }

  function remove(section) {
    section.remove();
    purge(section);
  }

  function purge(section) {
    all(".plot.js-plotly-plot", section).forEach(function (plot) { window.Plotly.purge(plot); });
  }

  // The last title at or above the top of the view: it stays where it is.
  function findAnchor() {
    var found = null;
    all("main > section, main figure[id]").forEach(function (element) {
      var top = element.getBoundingClientRect().top;
      if (!element.closest("[hidden]") && top <= 80) {
        found = { id: element.id, top: top };
      }
    });
    return found;
  }

  function restore(anchor) {
    var element = anchor && document.getElementById(anchor.id);
    if (element && !element.hidden) {
      var moved = element.getBoundingClientRect().top - anchor.top;
      window.scrollBy({ top: moved, behavior: "instant" });
    }
  }

  document.documentElement.style.overflowAnchor = "none"; // `restore` does it.
  document.addEventListener("visibilitychange", ask);
  window.addEventListener("focus", ask);
  ask();
})();
