//! Plots the measurements. A figure consists of a file of values, NAME.csv, and the SVG drawn from it.
//!
//! `cargo xtask bench … --plot FOLDER` writes both files from its run. `cargo xtask docs` draws the
//! figures of `docs/plots` from their values.

mod draw;

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// The description of a figure, without its values.
pub(crate) struct Figure {
    /// The name of the figure's files, without the extension.
    pub(crate) name: &'static str,
    title: &'static str,
    /// The caption of the vertical axis.
    axis: &'static str,
    style: Style,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    /// A group of bars for each row.
    Bars,
    /// A line for each series, through the rows.
    Lines,
}

pub(super) const SOFT_NIC: Figure = Figure {
    name: "soft-nic",
    title: "Throughput over loopback",
    axis: "Gbit/s (more is better)",
    style: Style::Bars,
};
pub(super) const SOCKET: Figure = Figure {
    name: "socket",
    title: "Socket transport beside one bare TCP stream",
    axis: "Gbit/s (more is better)",
    style: Style::Lines,
};
pub(super) const COLL: Figure = Figure {
    name: "coll",
    title: "All-reduce: Invar's time divided by Open MPI's",
    axis: "ratio (less is better)",
    style: Style::Lines,
};
pub(super) const COLLNET: Figure = Figure {
    name: "collnet",
    title: "All-reduce of collNet: its time divided by invar coll's",
    axis: "ratio (less is better)",
    style: Style::Lines,
};
pub(super) const PROTOCOL: Figure = Figure {
    name: "protocol",
    title: "Instructions of the protocol for an operation, both ends",
    axis: "instructions (less is better)",
    style: Style::Bars,
};
pub(super) const PLUGIN: Figure = Figure {
    name: "plugin",
    title: "Instructions of the plugin for an operation, both ends",
    axis: "instructions (less is better)",
    style: Style::Bars,
};

/// All figures of `docs/plots`.
pub(crate) const FIGURES: [Figure; 6] = [SOFT_NIC, SOCKET, COLL, COLLNET, PROTOCOL, PLUGIN];

/// The least and the greatest value of several runs. Both are equal where there is one value.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Span {
    least: f64,
    most: f64,
}

/// The values of a figure.
///
/// ```text
/// # under which circumstances they were measured
/// ,Invar,TCP          the series
/// 1 MiB,40.8,27.8     a row: its label, and a value for each series
/// 4 MiB,28..31,       least and most of several runs; nothing was measured
/// ```
#[derive(Debug, PartialEq)]
pub(crate) struct Values {
    about: String,
    series: Vec<String>,
    rows: Vec<(String, Vec<Option<Span>>)>,
}

impl Values {
    /// Makes a table without rows.
    pub(super) fn new(about: String, series: &[&str]) -> Self {
        let series = series.iter().map(|name| (*name).to_owned()).collect();
        Values { about, series, rows: Vec::new() }
    }

    /// Adds a row with a value for each series.
    pub(super) fn row(&mut self, label: String, values: impl IntoIterator<Item = f64>) {
        let span = |value: f64| value.is_finite().then_some(Span { least: value, most: value });
        self.rows.push((label, values.into_iter().map(span).collect()));
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines();
        let about =
            lines.next().and_then(|line| line.strip_prefix("# ")).context("no line `# …`")?;
        let series = lines.next().and_then(|line| line.strip_prefix(',')).context("no series")?;
        let mut values = Values::new(about.to_owned(), &series.split(',').collect::<Vec<_>>());
        for line in lines {
            let (label, cells) = line.split_once(',').with_context(|| line.to_owned())?;
            let cells = cells.split(',').map(Span::parse).collect::<Result<Vec<_>>>();
            let cells = cells.with_context(|| line.to_owned())?;
            ensure!(cells.len() == values.series.len(), "not a value for each series: {line}");
            values.rows.push((label.to_owned(), cells));
        }
        ensure!(!values.rows.is_empty(), "no rows");
        Ok(values)
    }

    fn to_text(&self) -> String {
        let mut text = format!("# {}\n,{}\n", self.about, self.series.join(","));
        for (label, cells) in &self.rows {
            let cells = cells.iter().map(|cell| cell.map_or(String::new(), Span::to_text));
            let line = cells.collect::<Vec<_>>().join(",");
            writeln!(text, "{label},{line}").expect("a String takes all");
        }
        text
    }
}

impl Span {
    /// Parses `VALUE` or `LEAST..MOST`. An empty text gives `None`.
    fn parse(text: &str) -> Result<Option<Self>> {
        if text.is_empty() {
            return Ok(None);
        }
        let (least, most) = text.split_once("..").unwrap_or((text, text));
        Ok(Some(Span { least: least.parse()?, most: most.parse()? }))
    }

    fn to_text(self) -> String {
        let Span { least, most } = self;
        if least == most { format!("{least:.2}") } else { format!("{least:.2}..{most:.2}") }
    }

    fn middle(self) -> f64 {
        f64::midpoint(self.least, self.most)
    }
}

impl Figure {
    /// Draws the figure as SVG.
    pub(crate) fn draw(&self, values: &Values) -> Result<String> {
        draw::svg(self, values).with_context(|| format!("drawing {}", self.name))
    }

    /// Writes the figure's CSV and SVG into `folder`, and creates the folder if it is missing.
    pub(super) fn write(&self, folder: &Path, values: &Values) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let write = |kind: &str, text: String| {
            let path = folder.join(format!("{}.{kind}", self.name));
            fs::write(&path, text).with_context(|| path.display().to_string())
        };
        write("csv", values.to_text())?;
        write("svg", self.draw(values)?)
    }
}

/// Formats a number of bytes as a label.
pub(super) fn bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# on a host\n,Invar,TCP\n8 B,1.50,2.00\n1 KiB,0.25..0.75,\n";

    #[test]
    fn values_are_read_as_they_are_written() {
        let values = Values::parse(TEXT).unwrap();
        assert_eq!(values.rows[1].1, [Some(Span { least: 0.25, most: 0.75 }), None]);
        assert_eq!(values.to_text(), TEXT);
        let mut measured = Values::new("on a host".to_owned(), &["Invar", "TCP"]);
        measured.row(bytes(8), [1.5, 2.0]);
        measured.row(bytes(1024), [0.5, f64::NAN]);
        assert_eq!(measured.to_text(), TEXT.replace("0.25..0.75", "0.50"));
    }

    #[test]
    fn what_is_no_file_of_values_is_refused() {
        for text in ["", "# a\n", "# a\n,b\n", "# a\n,b\nc\n", "# a\n,b\nc,1,2\n", "# a\n,b\nc,x\n"]
        {
            assert!(Values::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_figure_names_its_series_and_rows() {
        let values = Values::parse(TEXT).unwrap();
        for figure in [&SOFT_NIC, &SOCKET] {
            let svg = figure.draw(&values).unwrap();
            for text in ["Invar", "TCP", "8 B", "1 KiB", "on a host", figure.title, figure.axis] {
                assert!(svg.contains(text), "{text}: {svg}");
            }
        }
    }
}
