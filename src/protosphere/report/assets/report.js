// Draws figures when they come near the view, and switches menus and themes.
(function () {
  "use strict";

  // On a phone, the buttons of plotly would cover the legend.
  var CONFIG = {
    responsive: true,
    displaylogo: false,
    displayModeBar: window.matchMedia("(max-width: 60rem)").matches ? false : "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  };
  var root = document.documentElement;
  var palette = root.dataset.palette.split(" ");
  var printing = false;

  function all(selector, parent) {
    return Array.prototype.slice.call((parent || document).querySelectorAll(selector));
  }

  function color(name) {
    return getComputedStyle(root).getPropertyValue("--" + name).trim();
  }

  function template() {
    var axis = {
      automargin: true,
      gridcolor: color("grid"),
      linecolor: color("axis"),
      zerolinecolor: color("axis"),
      zerolinewidth: 1,
      tickcolor: color("axis"),
      ticks: "outside",
      ticklen: 4,
      title: { standoff: 8, font: { size: 13 } },
    };
    var scene = {
      gridcolor: color("grid"),
      linecolor: color("axis"),
      zerolinecolor: color("axis"),
      backgroundcolor: color("paper"),
      showbackground: false,
    };
    return {
      layout: {
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        colorway: palette,
        font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: color("ink") },
        margin: { l: 56, r: 16, t: 24, b: 48, pad: 0 },
        xaxis: axis,
        yaxis: axis,
        scene: { xaxis: scene, yaxis: scene, zaxis: scene },
        hoverlabel: {
          bgcolor: color("raised"),
          bordercolor: color("rule"),
          font: { color: color("ink"), size: 12 },
          align: "left",
        },
        legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom",
          bgcolor: "rgba(0,0,0,0)", font: { size: 12 } },
        coloraxis: { colorbar: { outlinewidth: 0 } },
        modebar: { bgcolor: "rgba(0,0,0,0)", color: color("faint"), activecolor: color("accent") },
      },
      data: {
        heatmap: [{ colorbar: { outlinewidth: 0, thickness: 14 } }],
        contour: [{ colorbar: { outlinewidth: 0, thickness: 14 } }],
      },
    };
  }

  // The figures as they were written; plotly changes what it draws.
  function read(name) {
    return JSON.parse(document.getElementById(name + "-data").textContent);
  }

  function layoutOf(figure, plot) {
    var layout = figure.layout;
    layout.template = template();
    layout.height = parseInt(plot.style.height, 10);
    layout.autosize = true;
    layout.uirevision = "keep";
    return layout;
  }

  function draw(plot) {
    if (plot.dataset.state !== "waiting" || !window.Plotly) {
      return;
    }
    if (plot.offsetParent === null) {
      return; // Another figure of its menu is shown.
    }
    plot.dataset.state = "drawing";
    var figure = read(plot.dataset.figure);
    try {
      window.Plotly.newPlot(plot, figure.data, layoutOf(figure, plot), CONFIG).then(
        function () { plot.dataset.state = "drawn"; },
        function (error) { fail(plot, error); }
      );
    } catch (error) {
      fail(plot, error);
    }
  }

  function fail(plot, error) {
    plot.dataset.state = "failed";
    plot.textContent = "This figure could not be drawn: " + error.message;
    console.error(error);
  }

  function redraw() {
    all('.plot[data-state="drawn"]').forEach(function (plot) {
      var figure = { layout: read(plot.dataset.figure).layout };
      window.Plotly.react(plot, plot.data, layoutOf(figure, plot), CONFIG);
    });
  }

  function setTheme(theme) {
    root.dataset.theme = theme;
    redraw();
  }

  function watchView() {
    if (!("IntersectionObserver" in window)) {
      all(".plot").forEach(draw);
      return;
    }
    var near = new IntersectionObserver(function (entries) {
      entries.forEach(function (entry) {
        if (entry.isIntersecting) {
          draw(entry.target);
        }
      });
    }, { rootMargin: "600px 0px" });
    all(".plot").forEach(function (plot) { near.observe(plot); });
  }

  function watchContents() {
    var links = {};
    all(".contents a").forEach(function (link) {
      links[link.getAttribute("href").slice(1)] = link;
    });
    var sections = all("main > section");
    var current = null;
    function mark() {
      var found = sections[0];
      sections.forEach(function (section) {
        if (section.getBoundingClientRect().top <= window.innerHeight / 3) {
          found = section;
        }
      });
      if (!found || found === current) {
        return;
      }
      if (current) {
        links[current.id].removeAttribute("aria-current");
      }
      current = found;
      var link = links[current.id];
      link.setAttribute("aria-current", "true");
      var list = link.closest("ol");
      list.scrollLeft = link.offsetLeft - list.offsetLeft - list.clientWidth / 3;
    }
    var scheduled = false;
    window.addEventListener("scroll", function () {
      if (!scheduled) {
        scheduled = true;
        window.requestAnimationFrame(function () { scheduled = false; mark(); });
      }
    }, { passive: true });
    mark();
  }

  function watchMenus() {
    all(".choice").forEach(function (choice) {
      var menu = choice.querySelector("select");
      function show() {
        all("figure", choice).forEach(function (figure) {
          figure.hidden = figure.id !== menu.value;
          var plot = figure.querySelector(".plot");
          if (!figure.hidden && plot.dataset.state === "waiting") {
            draw(plot);
          } else if (!figure.hidden && plot.dataset.state === "drawn") {
            window.Plotly.Plots.resize(plot); // The window may have changed meanwhile.
          }
        });
      }
      menu.addEventListener("change", show);
    });
  }

  function watchTheme() {
    document.getElementById("theme").addEventListener("click", function () {
      var theme = root.dataset.theme === "dark" ? "light" : "dark";
      try {
        window.localStorage.setItem("protosphere-theme", theme);
      } catch (error) {
        // Storage may be switched off.
      }
      setTheme(theme);
    });
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", function (event) {
      var stored = null;
      try {
        stored = window.localStorage.getItem("protosphere-theme");
      } catch (error) {
        // Storage may be switched off.
      }
      if (stored === null && !printing) {
        setTheme(event.matches ? "dark" : "light");
      }
    });
  }

  function watchPrinting() {
    var theme = null;
    window.addEventListener("beforeprint", function () {
      if (printing) {
        return;
      }
      printing = true;
      theme = root.dataset.theme;
      root.classList.add("printing");
      all(".plot").forEach(draw);
      setTheme("light");
      all(".plot.js-plotly-plot").forEach(function (plot) {
        if (plot.offsetParent !== null) {
          window.Plotly.relayout(plot, { autosize: false, width: plot.clientWidth });
        }
      });
    });
    window.addEventListener("afterprint", function () {
      root.classList.remove("printing");
      printing = false;
      setTheme(theme || "light");
    });
  }

  watchView();
  watchContents();
  watchMenus();
  watchTheme();
  watchPrinting();
})();
