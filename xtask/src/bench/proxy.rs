//! Measures the example `proxy`: operations whose data the proxy moves between three ranks, beside the bytes
//! of a shift over connections of one process. Each run measures both.

use anyhow::{Context, Result, ensure};

use super::Args;
use super::soft_nic::{built, median};
use crate::shell::Shell;

/// An odd number, so that one run is the median.
const RUNS: usize = 5;

/// The rounds of a run, and the elements of each rank: 64 bytes and 4 MB.
const SIZES: [[&str; 2]; 2] = [["1000", "16"], ["20", "1000003"]];

struct Case {
    name: &'static str,
    transport: &'static str,
}

const CASES: [Case; 2] = [
    Case { name: "proxy-soft", transport: "soft" },
    Case { name: "proxy-socket", transport: "socket" },
];

pub(super) fn cases() -> Vec<&'static str> {
    CASES.iter().map(|case| case.name).collect()
}

/// A row that the example prints.
#[derive(Debug, PartialEq)]
struct Row {
    operation: String,
    /// Time in µs, rate in GB/s, operations a second.
    figures: [f64; 3],
}

/// Prints the tables. No case has a bar.
pub(super) fn run(shell: &Shell, args: &Args) -> Result<Vec<String>> {
    let target_dir = built(shell, "invar --example proxy")?;
    for case in CASES.iter().filter(|case| args.wants(case.name)) {
        for size in SIZES {
            let mut runs = Vec::new();
            for _ in 0..RUNS {
                let mut program = shell.program(&target_dir.join("release/examples/proxy"));
                program.args(size).env("INVAR_TRANSPORT", case.transport);
                program.env("NCCL_SOCKET_IFNAME", "lo");
                runs.push(rows(&shell.capture(program).context("the example proxy")?)?);
            }
            let [rounds, elements] = size;
            println!("{}: {elements} elements, {rounds} rounds, medians of {RUNS}", case.name);
            println!("{:26} {:>10} {:>8} {:>13}", "", "time (us)", "GB/s", "operations/s");
            for (at, Row { operation, .. }) in runs[0].iter().enumerate() {
                let of = |figure: usize| {
                    let mut values: Vec<f64> =
                        runs.iter().map(|rows| rows[at].figures[figure]).collect();
                    median(&mut values)
                };
                println!("{operation:26} {:10.1} {:8.3} {:13.1}", of(0), of(1), of(2));
            }
        }
    }
    Ok(Vec::new())
}

/// The rows below the head of the example's table.
fn rows(output: &str) -> Result<Vec<Row>> {
    let lines = output.lines().skip_while(|line| !line.ends_with("operations/s")).skip(1);
    let rows = lines.map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (operation, figures) =
            words.split_last_chunk::<3>().with_context(|| format!("no row: {line:?}"))?;
        let mut parsed = [0.0; 3];
        for (parsed, text) in parsed.iter_mut().zip(figures) {
            *parsed = text.parse().with_context(|| format!("no row: {line:?}"))?;
        }
        Ok(Row { operation: operation.join(" "), figures: parsed })
    });
    let rows = rows.collect::<Result<Vec<_>>>()?;
    ensure!(!rows.is_empty(), "the example printed no table: {output}");
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_of_the_example_are_below_its_head() {
        let text = "the proxy moves over soft0\n     time (us)  GB/s  operations/s\n\
                    Shift Simple, no proxy      2250.5    1.777         444.3\n";
        let operation = "Shift Simple, no proxy".to_owned();
        assert_eq!(rows(text).unwrap(), [Row { operation, figures: [2250.5, 1.777, 444.3] }]);
        assert!(rows("the proxy moves over soft0\n").is_err());
    }
}
