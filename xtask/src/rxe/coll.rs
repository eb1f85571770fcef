//! Tests `invar coll` over rxe: every operation between two ranks, one at each end of the cable.

use anyhow::{Context, Result, ensure};
use serde_json::{Deserializer, Value};

use super::guest;
use crate::shell::Shell;

const OPERATIONS: [&str; 7] =
    ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "sendrecv", "all_to_all"];
/// The sizes of messages. The largest message takes several chunks on each channel.
const SIZES: &str = "--min-bytes 8 --max-bytes 512K --factor 256 --iters 1 --warmup 0";

pub(super) fn run(shell: &Shell, invar: &str) -> Result<()> {
    let rank = |rank, device, operation, also| {
        let place = format!("--rank {rank} --ranks 2 --root 127.0.0.1:7002");
        format!("NCCL_IB_HCA={device} {invar} coll {operation} {place} {SIZES} {also}")
    };
    let mut lines = vec![
        "set -e".to_owned(),
        "export INVAR_COLL_SECRET=rxe INVAR_TRANSPORT=ib NCCL_SHM_DISABLE=1".to_owned(),
    ];
    for operation in OPERATIONS {
        lines.push(format!("{} & one=$!", rank(1, "rxe_b", operation, "")));
        lines.push(rank(0, "rxe_a", operation, "--json -"));
        lines.push("wait $one".to_owned());
    }
    let output = guest(shell, None, &lines.join("\n"))?;
    check(&output).context("invar coll in the guest")
}

/// Checks that there is a report of each operation with every size, and that no element was wrong.
fn check(output: &str) -> Result<()> {
    let reports = Deserializer::from_str(output).into_iter::<Value>();
    let reports = reports.collect::<Result<Vec<_>, _>>().with_context(|| output.to_owned())?;
    let done: Vec<_> = reports.iter().filter_map(|report| report["operation"].as_str()).collect();
    ensure!(done == OPERATIONS, "not of every operation: {done:?}");
    for report in &reports {
        let rows = report["rows"].as_array().context("no rows")?;
        ensure!(rows.len() == 3, "{} sizes: {report}", rows.len());
        ensure!(rows.iter().all(|row| row["wrong"] == 0), "elements are wrong: {report}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_elements_and_missing_operations_or_sizes_do_not_pass() {
        let report = |operation: &str, wrong, rows| {
            let rows = vec![serde_json::json!({ "wrong": wrong }); rows];
            serde_json::json!({ "operation": operation, "rows": rows }).to_string()
        };
        let all = |wrong, rows| OPERATIONS.map(|of| report(of, wrong, rows)).concat();
        assert!(check(&all(0, 3)).is_ok());
        assert!(check(&all(1, 3)).is_err());
        assert!(check(&all(0, 2)).is_err());
        assert!(check(&report("reduce", 0, 3)).is_err());
        assert!(check("").is_err());
    }
}
