//! The table and the JSON of `invar coll`.

use serde::Serialize;

use crate::failure::Failure;
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
    /// The flags and variables that have no effect.
    #[serde(skip)]
    pub(super) unused: Option<String>,
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
    pub(super) time_us: f64,
    pub(super) algbw_gbytes_per_s: f64,
    pub(super) busbw_gbytes_per_s: f64,
    /// Wrong elements on all ranks.
    pub(super) wrong: u64,
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
    let Header { version, nranks, operation, transport, unused, .. } = header;
    let titles = ["size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong"];
    let units = ["(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", ""];
    let line = |cells: [&str; 9]| format!("#{}", columns(cells.map(str::to_owned)));
    let unused = unused.as_ref().map_or(String::new(), |text| format!("# {text}\n"));
    format!(
        "# invar coll {operation} {version}: {nranks} ranks, transport {transport}\n{unused}{}\n{}",
        line(titles),
        line(units)
    )
}

fn line(row: &Row, check: bool) -> String {
    let cells = [
        row.size.to_string(),
        row.count.to_string(),
        row.data_type.to_owned(),
        row.redop.to_owned(),
        row.root.to_string(),
        format!("{:.2}", row.time_us),
        format!("{:.3}", row.algbw_gbytes_per_s),
        format!("{:.3}", row.busbw_gbytes_per_s),
        if check { row.wrong.to_string() } else { "N/A".to_owned() },
    ];
    format!(" {}", columns(cells))
}

fn columns(cells: [String; 9]) -> String {
    let widths = [10, 10, 8, 5, 4, 11, 8, 8, 7];
    let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:>width$}"));
    padded.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_a_line_and_an_object() {
        let row = Row {
            op: "all_reduce",
            size: 1 << 20,
            count: 1 << 18,
            data_type: "float",
            redop: "sum",
            root: -1,
            iters: 10,
            time_us: 100.0,
            algbw_gbytes_per_s: 10.48576,
            busbw_gbytes_per_s: 10.48576,
            wrong: 3,
        };
        let cells: Vec<String> = line(&row, true).split_whitespace().map(str::to_owned).collect();
        let want = ["1048576", "262144", "float", "sum", "-1", "100.00", "10.486", "10.486", "3"];
        assert_eq!(cells, want);
        assert!(line(&row, false).ends_with("    N/A"));
        let header = Header {
            version: "1",
            nranks: 4,
            operation: "all_reduce",
            check: true,
            transport: "soft (soft0)".to_owned(),
            unused: None,
        };
        assert!(head(&header).starts_with("# invar coll all_reduce 1: 4 ranks, transport soft (s"));
        let json = serde_json::to_string(&Content { header: &header, rows: &[row] }).unwrap();
        assert!(json.starts_with(r#"{"version":"1","nranks":4,"#), "{json}");
        assert!(json.contains(r#""op":"all_reduce","size":1048576,"count":262144,"type":"float""#));
    }
}
