//! The table and the JSON of `invar coll`.

use serde::Serialize;

use crate::failure::{Failure, line as safe_line};
use crate::output::Outputs;

/// The values that all rows share.
#[derive(Serialize)]
pub(super) struct Header {
    pub(super) version: &'static str,
    pub(super) nranks: u32,
    pub(super) operation: &'static str,
    pub(super) check: bool,
    /// The transport of rank 0's data.
    pub(super) transport: String,
    pub(super) hosts: Vec<Host>,
    /// The flags and variables that have no effect.
    #[serde(skip)]
    pub(super) unused: Option<String>,
}

/// Ranks that are on one host and have one transport.
#[derive(Serialize)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) transport: String,
    pub(super) ranks: Vec<u32>,
}

/// The results of one size.
#[derive(Serialize)]
pub(super) struct Row {
    pub(super) op: &'static str,
    /// Bytes of the larger buffer of a rank.
    pub(super) size: usize,
    /// Elements, by NCCL's count.
    pub(super) count: usize,
    #[serde(rename = "type")]
    pub(super) data_type: &'static str,
    /// The reduction; `none` if the operation does not reduce.
    pub(super) redop: &'static str,
    /// The root; -1 if the operation has none.
    pub(super) root: i64,
    pub(super) iters: u64,
    #[serde(flatten)]
    pub(super) out_of_place: Figures,
    /// `null` if the operation has no form in place.
    pub(super) in_place: Option<Figures>,
}

/// The results of calls of one form.
#[derive(Serialize)]
pub(super) struct Figures {
    time_us: f64,
    algbw_gbytes_per_s: f64,
    busbw_gbytes_per_s: f64,
    /// Wrong elements on all ranks.
    pub(super) wrong: u64,
}

impl Figures {
    /// The figures of a call that takes `seconds` for `bytes`.
    pub(super) fn new(bytes: usize, seconds: f64, bus_factor: f64, wrong: u64) -> Self {
        let algbw = bytes as f64 / seconds / 1e9;
        Figures {
            time_us: seconds * 1e6,
            algbw_gbytes_per_s: algbw,
            busbw_gbytes_per_s: algbw * bus_factor,
            wrong,
        }
    }

    fn cells(&self, check: bool) -> [String; 4] {
        [
            format!("{:.2}", self.time_us),
            format!("{:.3}", self.algbw_gbytes_per_s),
            format!("{:.3}", self.busbw_gbytes_per_s),
            if check { self.wrong.to_string() } else { "N/A".to_owned() },
        ]
    }
}

/// Prints each result as soon as it is there.
pub(super) struct Report {
    outputs: Outputs,
    header: Header,
    rows: Vec<Row>,
    /// Set once nobody reads the table any more.
    unread: Option<Failure>,
}

/// The JSON document.
#[derive(Serialize)]
struct Content<'a> {
    #[serde(flatten)]
    header: &'a Header,
    rows: &'a [Row],
}

impl Report {
    pub(super) fn new(outputs: Outputs, header: Header) -> Result<Self, Failure> {
        let head = head(&header);
        let mut report = Report { outputs, header, rows: Vec::new(), unread: None };
        report.print(&head)?;
        Ok(report)
    }

    pub(super) fn row(&mut self, row: Row) -> Result<(), Failure> {
        let line = line(&row, self.header.check);
        self.rows.push(row);
        self.print(&line)
    }

    /// Whether the table may have a reader. Without a reader the measurement ends.
    pub(super) fn is_read(&self) -> bool {
        self.unread.is_none()
    }

    pub(super) fn finish(mut self) -> Result<(), Failure> {
        let summary = summary(&self.rows, self.header.check);
        self.print(&summary)?;
        match self.unread {
            Some(unread) => Err(unread),
            None => self.outputs.json(&Content { header: &self.header, rows: &self.rows }),
        }
    }

    fn print(&mut self, text: &str) -> Result<(), Failure> {
        match self.outputs.line(text) {
            Err(failure) if failure.is_unread() => self.unread = Some(failure),
            printed => printed?,
        }
        Ok(())
    }
}

fn head(header: &Header) -> String {
    let Header { version, nranks, operation, transport, hosts, unused, .. } = header;
    let mut lines =
        vec![format!("# invar coll {operation} {version}: {nranks} ranks, transport {transport}")];
    lines.extend(hosts.iter().map(|host| {
        let Host { name, transport, ranks } = host;
        safe_line(&format!("# host {name}: {}, {transport}", spans(ranks)))
    }));
    lines.extend(unused.as_ref().map(|text| format!("# {text}")));
    let form = ["time", "algbw", "busbw", "#wrong"];
    let units = ["(us)", "(GB/s)", "(GB/s)", ""];
    let forms = ["out-of-place", "", "", ""];
    let in_place = ["in-place", "", "", ""];
    for cells in [
        [&["", "", "", "", ""][..], &forms, &in_place].concat(),
        [&["size", "count", "type", "redop", "root"][..], &form, &form].concat(),
        [&["(B)", "(elements)", "", "", ""][..], &units, &units].concat(),
    ] {
        let cells: Vec<String> = cells.into_iter().map(str::to_owned).collect();
        lines.push(format!("#{}", columns(&cells).trim_end()));
    }
    lines.join("\n")
}

/// Ranks as `ranks 0-2, 5`.
fn spans(ranks: &[u32]) -> String {
    let mut spans: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match spans.last_mut() {
            Some((_, last)) if *last + 1 == *rank => *last = *rank,
            _ => spans.push((*rank, *rank)),
        }
    }
    let text = |(first, last): &(u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {}", spans.iter().map(text).collect::<Vec<_>>().join(", "))
}

fn line(row: &Row, check: bool) -> String {
    let about = [
        row.size.to_string(),
        row.count.to_string(),
        row.data_type.to_owned(),
        row.redop.to_owned(),
        row.root.to_string(),
    ];
    let in_place = match &row.in_place {
        Some(figures) => figures.cells(check),
        None => ["N/A"; 4].map(str::to_owned),
    };
    format!(" {}", columns(&[&about[..], &row.out_of_place.cells(check), &in_place].concat()))
}

/// The last lines, as nccl-tests has them.
fn summary(rows: &[Row], check: bool) -> String {
    let figures: Vec<&Figures> = rows
        .iter()
        .flat_map(|row| [Some(&row.out_of_place), row.in_place.as_ref()])
        .flatten()
        .collect();
    let wrong: u64 = figures.iter().map(|figures| figures.wrong).sum();
    let busbw: f64 = figures.iter().map(|figures| figures.busbw_gbytes_per_s).sum();
    let wrong = if check { wrong.to_string() } else { "not counted".to_owned() };
    format!(
        "# wrong elements: {wrong}\n# average busbw: {:.3} GB/s",
        busbw / figures.len().max(1) as f64
    )
}

fn columns(cells: &[String]) -> String {
    let widths = [10, 10, 8, 5, 4, 11, 8, 8, 7, 11, 8, 8, 7];
    let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:>width$}"));
    padded.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(in_place: Option<Figures>) -> Row {
        Row {
            op: "all_reduce",
            size: 1 << 20,
            count: 1 << 18,
            data_type: "float",
            redop: "sum",
            root: -1,
            iters: 10,
            out_of_place: Figures::new(1 << 20, 1e-4, 1.0, 3),
            in_place,
        }
    }

    fn cells(row: &Row, check: bool) -> Vec<String> {
        line(row, check).split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_row_is_a_line_and_an_object() {
        let both = row(Some(Figures::new(1 << 20, 2e-4, 0.5, 0)));
        let about = ["1048576", "262144", "float", "sum", "-1"];
        let apart = ["100.00", "10.486", "10.486", "3"];
        let in_place = ["200.00", "5.243", "2.621", "0"];
        assert_eq!(cells(&both, true), [&about[..], &apart, &in_place].concat());
        let one = row(None);
        assert_eq!(cells(&one, true), [&about[..], &apart, &["N/A"; 4]].concat());
        assert!(line(&one, false).contains(" 10.486     N/A "), "{}", line(&one, false));
        let header = Header {
            version: "1",
            nranks: 4,
            operation: "all_reduce",
            check: true,
            transport: "soft (soft0)".to_owned(),
            hosts: vec![Host {
                name: "a\x1bb".to_owned(),
                transport: "shared memory".to_owned(),
                ranks: vec![0, 1, 2, 5],
            }],
            unused: None,
        };
        let head = head(&header);
        assert!(head.starts_with("# invar coll all_reduce 1: 4 ranks, transport soft (s"));
        assert!(head.contains("\n# host a b: ranks 0-2, 5, shared memory\n"), "{head}");
        let json = serde_json::to_string(&Content { header: &header, rows: &[both] }).unwrap();
        assert!(json.starts_with(r#"{"version":"1","nranks":4,"#), "{json}");
        assert!(json.contains(r#""op":"all_reduce","size":1048576,"count":262144,"type":"float""#));
        assert!(json.contains(r#""wrong":3,"in_place":{"time_us":200.0"#), "{json}");
    }

    #[test]
    fn the_summary_counts_both_forms() {
        let rows = [row(Some(Figures::new(1 << 20, 1e-4, 1.0, 2))), row(None)];
        assert_eq!(summary(&rows, true), "# wrong elements: 8\n# average busbw: 10.486 GB/s");
        assert!(summary(&rows, false).starts_with("# wrong elements: not counted\n"));
    }
}
