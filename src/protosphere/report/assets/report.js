// Draws figures when they come near the view, and switches menus and themes.
(function () {
  "use strict";

  var narrow = window.matchMedia("(max-width: 40rem)");
  // On a phone, the buttons of plotly would cover the legend.
  var CONFIG = {
    responsive: true,
    displaylogo: false,
    displayModeBar: !narrow.matches,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  };
  var PANEL_HEIGHT = 250;
  var PANEL_GAP = 64;
  var PANEL_TITLE = 28;
  var SCENE_MARGIN = 50;
  var TRIMMED_MARGIN = 16;
  var MIN_TRIMMED = 200;
  var MAX_NAME = 12;
  var LEGEND_ROW = 20;
  var MAX_LEGEND_ROWS = 12;
  var root = document.documentElement;
  var palette = root.dataset.palette.split(" ");
  var printing = false;
  // Figures at most this far from the view are drawn, in pixels.
  var MARGIN = 600;
  var near = null;
  var markSection = function () {};

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
          bgcolor: "rgba(0,0,0,0)", font: { size: 12 }, tracegroupgap: 0 },
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

  // On a phone, the panels of a figure are below each other, not side by side.
  function stackPanels(layout, height) {
    var panels = Object.keys(layout).filter(function (key) {
      return /^yaxis\d*$/.test(key) && layout[key].domain && layout[key].anchor;
    }).map(function (key) {
      return { y: layout[key], x: layout[layout[key].anchor.replace("x", "xaxis")] };
    }).filter(function (panel) { return panel.x && panel.x.domain; });
    if (!panels.some(function (panel) { return panel.x.domain[0] > 0; })) {
      return height;
    }
    panels.sort(function (a, b) {
      return b.y.domain[1] - a.y.domain[1] || a.x.domain[0] - b.x.domain[0];
    });
    var total = panels.length * PANEL_HEIGHT;
    panels.forEach(function (panel, index) {
      var top = 1 - index / panels.length - PANEL_TITLE / total;
      var gap = index === panels.length - 1 ? PANEL_TITLE / total : PANEL_GAP / total;
      panel.x.domain = [0, 1];
      if (index < panels.length - 1) {
        delete panel.x.title; // The last one is that of all panels.
      }
      panel.y.domain = [Math.max(0, top - 1 / panels.length + gap), top];
    });
    return total + PANEL_GAP;
  }

  // On a phone, a legend has one or two entries per row: the figure becomes higher by it.
  function extendLegend(figure, height) {
    var entries = figure.data.filter(function (trace) {
      return trace.name && trace.showlegend !== false;
    }).length;
    var legend = figure.layout.legend;
    if (!legend || !legend.maxheight) {
      return height;
    }
    var needed = LEGEND_ROW * Math.min(entries, MAX_LEGEND_ROWS) + 8;
    figure.layout.legend = Object.assign({}, legend, { maxheight: needed });
    return height + Math.max(0, needed - legend.maxheight);
  }

  // On a phone, the axes of a 3-D view have titles, but no numbers: both would be cut off.
  function shrinkScene(scene) {
    var eye = scene.camera && scene.camera.eye;
    if (eye) {
      ["x", "y", "z"].forEach(function (axis) { eye[axis] *= 1.05; });
    }
    ["xaxis", "yaxis", "zaxis"].forEach(function (name) {
      var axis = scene[name];
      if (axis && axis.title) {
        axis.title.font = { size: 10 };
        axis.showticklabels = false;
      }
    });
  }

  // On a phone, long names of classes would leave no room for a map; they are shown on a tap.
  function hideLongNames(figure) {
    var axes = figure.layout;
    var names = figure.data[0] && figure.data[0].y;
    var isLong = Array.isArray(names) && names.some(function (name) {
      return typeof name === "string" && name.length > MAX_NAME;
    });
    if (isLong && axes.yaxis && axes.yaxis.scaleanchor) {
      axes.xaxis.showticklabels = axes.yaxis.showticklabels = false;
    }
  }

  function layoutOf(figure, plot) {
    var layout = figure.layout;
    var height = parseInt(plot.dataset.height, 10);
    layout.template = template();
    if (narrow.matches) {
      height = extendLegend(figure, stackPanels(layout, height));
      if (layout.scene) {
        height = Math.min(height, plot.clientWidth + SCENE_MARGIN); // No taller than it is wide.
        shrinkScene(layout.scene);
      }
      hideLongNames(figure);
    }
    layout.height = height;
    plot.style.height = layout.height + "px";
    layout.autosize = !printing;
    if (printing) {
      layout.width = plot.clientWidth; // The browser scales the page to the paper.
    }
    layout.uirevision = "keep";
    Object.keys(plot.cameras || {}).forEach(function (scene) {
      layout[scene] = Object.assign({}, layout[scene], { camera: plot.cameras[scene] });
    });
    return layout;
  }

  // Maps are square: where their width limits them, take away the height below them.
  function trim(plot) {
    var isSquare = Object.keys(plot.layout || {}).some(function (name) {
      return /^yaxis\d*$/.test(name) && plot.layout[name].scaleanchor;
    });
    if (!isSquare) {
      return Promise.resolve();
    }
    var box = plot.getBoundingClientRect();
    var drawn = all('.heatmaplayer image, .xtick text, [class^="g-x"] text', plot);
    var bottom = Math.max.apply(null, drawn.map(function (element) {
      return element.getBoundingClientRect().bottom;
    }));
    var height = Math.ceil(bottom - box.top) + TRIMMED_MARGIN;
    if (!(height > MIN_TRIMMED && height < box.height)) {
      return Promise.resolve();
    }
    plot.style.height = height + "px";
    return window.Plotly.relayout(plot, { height: height });
  }

  function draw(plot) {
    if (plot.dataset.state !== "waiting" || !window.Plotly) {
      return;
    }
    if (plot.offsetParent === null) {
      return; // Another figure of its menu is shown.
    }
    plot.dataset.state = "drawing";
    plot.look = look();
    var figure = read(plot.dataset.figure);
    try {
      window.Plotly.newPlot(plot, figure.data, layoutOf(figure, plot), CONFIG).then(
        function () { return trim(plot); }
      ).then(
        function () {
          plot.dataset.state = "drawn";
          update(plot);
        },
        function (error) { fail(plot, error); }
      );
    } catch (error) {
      fail(plot, error);
    }
  }

  // Browsers keep only 16 WebGL contexts: give one back when its figure cannot be seen.
  function release(plot) {
    if (plot.dataset.state !== "drawn" || printing || !plot.querySelector("canvas")) {
      return;
    }
    plot.cameras = {};
    Object.keys(plot.layout).forEach(function (name) {
      if (/^scene\d*$/.test(name) && plot.layout[name].camera) {
        plot.cameras[name] = plot.layout[name].camera;
      }
    });
    window.Plotly.purge(plot);
    plot.dataset.state = "waiting";
  }

  function fail(plot, error) {
    plot.dataset.state = "failed";
    plot.textContent = "This figure could not be drawn: " + error.message;
    console.error(error);
  }

  // What figures depend on besides their data.
  function look() {
    return [root.dataset.theme, narrow.matches, printing].join(" ");
  }

  // Draw what has been written to the page since the figure was drawn; zoom and camera stay.
  function refresh(plot) {
    if (plot.dataset.state === "drawn") {
      var figure = read(plot.dataset.figure);
      plot.look = look();
      window.Plotly.react(plot, figure.data, layoutOf(figure, plot), CONFIG).then(
        function () { return trim(plot); }
      );
    }
  }

  function update(plot) {
    if (plot.look !== look() && plot.offsetParent !== null) {
      refresh(plot);
    }
  }

  function isNear(plot) {
    var box = plot.getBoundingClientRect();
    return box.bottom > -MARGIN && box.top < window.innerHeight + MARGIN;
  }

  // Figures far away change when they come near the view; on paper all of them are seen.
  function redraw() {
    all(".plot").forEach(function (plot) {
      if (printing || isNear(plot)) {
        update(plot);
      }
    });
  }

  function setTheme(theme) {
    root.dataset.theme = theme;
    redraw();
  }

  function watchView() {
    if ("IntersectionObserver" in window) {
      near = new IntersectionObserver(function (entries) {
        entries.forEach(function (entry) {
          if (entry.isIntersecting) {
            draw(entry.target);
            update(entry.target);
          } else {
            release(entry.target);
          }
        });
      }, { rootMargin: MARGIN + "px 0px" });
    }
    all(".plot").forEach(observe);
  }

  function observe(plot) {
    if (near) {
      near.observe(plot);
    } else {
      draw(plot);
    }
  }

  function watchContents() {
    var current = null;
    function mark() {
      var sections = all("main > section");
      var found = sections[0];
      sections.forEach(function (section) {
        if (section.getBoundingClientRect().top <= window.innerHeight / 3) {
          found = section;
        }
      });
      var link = found && document.querySelector('.contents a[href="#' + found.id + '"]');
      if (!link || link === current) {
        return;
      }
      if (current) {
        current.removeAttribute("aria-current");
      }
      current = link;
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
    markSection = mark;
  }

  // Show the selected figure of a menu.
  function showSelected(choice) {
    var selected = choice.querySelector("select").value;
    all("figure", choice).forEach(function (figure) {
      var plot = figure.querySelector(".plot");
      if (figure.id !== selected) {
        release(plot);
      }
      figure.hidden = figure.id !== selected;
      if (!figure.hidden && plot.dataset.state === "waiting") {
        if (!near || isNear(plot)) {
          draw(plot);
        }
      } else if (!figure.hidden && plot.dataset.state === "drawn") {
        update(plot);
        window.Plotly.Plots.resize(plot); // The window may have changed meanwhile.
      }
    });
  }

  function watchMenus() {
    document.addEventListener("change", function (event) {
      var choice = event.target.closest(".choice");
      if (choice) {
        var top = event.target.getBoundingClientRect().top;
        showSelected(choice);
        selectAlike(choice);
        // Figures above may have changed their heights.
        var moved = event.target.getBoundingClientRect().top - top;
        window.scrollBy({ top: moved, behavior: "instant" });
      }
    });
  }

  // Menus with the same label follow each other, where they have the selected option.
  function selectAlike(choice) {
    var label = choice.querySelector("label").textContent;
    var menu = choice.querySelector("select");
    var text = menu.options[menu.selectedIndex].text;
    all(".choice").forEach(function (other) {
      var follower = other.querySelector("select");
      var index = Array.prototype.findIndex.call(follower.options, function (option) {
        return option.text === text;
      });
      var isAlike = other !== choice && other.querySelector("label").textContent === label;
      if (isAlike && index >= 0 && index !== follower.selectedIndex) {
        follower.selectedIndex = index;
        showSelected(other);
      }
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
      setTheme("light");
      all(".plot").forEach(draw);
    });
    window.addEventListener("afterprint", function () {
      printing = false;
      setTheme(theme || "light");
      all(".plot").filter(function (plot) { return !isNear(plot); }).forEach(release);
    });
  }

  narrow.addEventListener("change", redraw);
  watchView();
  watchContents();
  watchMenus();
  watchTheme();
  watchPrinting();

  // For pages that follow runs in progress.
  window.protosphereReport = {
    markSection: function () { markSection(); },
    observe: observe,
    refresh: refresh,
    showSelected: showSelected,
  };
})();
