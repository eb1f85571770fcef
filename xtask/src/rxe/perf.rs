//! Tests `invar perf` over rxe: whole transfers, the handshake before them included.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::guest;
use crate::shell::Shell;

const SIZES: &str = "--min-bytes 0 --max-bytes 1M --factor 32 --iters 20";

pub(super) fn run(shell: &Shell, invar: &str) -> Result<()> {
    // Without `--nic`, `invar perf` finds a device by itself.
    let output = guest(shell, None, &format!("{invar} perf {SIZES} --json -"))?;
    check(&output, "rxe_a").context("invar perf in the guest")?;

    // The software NIC has to use the UDP port that rxe sends to. On Invar's wire it learns the port
    // from its peer, on NCCL's wire it assumes 4791. The host's end of the cable has room for path MTU
    // 4096, the guest's has not.
    for wire in ["invar", "nccl-2.14"] {
        let wire = format!("INVAR_WIRE={wire}");
        let server = "--server 198.51.100.1:7001";
        let client = format!("--connect 198.51.100.1:7001 {SIZES} --json -");
        let host = format!("{wire} {invar} perf {server} >&2");
        let line = format!("sleep 2; {wire} {invar} perf --nic rxe_t {client}");
        let output = guest(shell, Some(&host), &line)?;
        check(&output, "rxe_t")
            .with_context(|| format!("{wire} invar perf between rxe and the software NIC"))?;
    }
    Ok(())
}

/// Checks that all transfers went over the RDMA device `nic`, that packets fit its link, and that no
/// byte was wrong.
fn check(json: &str, nic: &str) -> Result<()> {
    let result: Value = serde_json::from_str(json.trim()).with_context(|| json.to_owned())?;
    ensure!(result["transport"] == "ib" && result["nic"] == nic, "not over {nic}: {result}");
    let is_v6 = |name: &str| result[name].as_str().map(|address| address.contains(':'));
    ensure!(is_v6("address") == is_v6("peer"), "two families of addresses: {result}");
    ensure!(result["path_mtu"] == 1024, "not the smaller of both ends' MTU: {result}");
    let rows = result["rows"].as_array().context("no rows")?;
    ensure!(rows.len() >= 5, "{} sizes only", rows.len());
    ensure!(rows.iter().all(|row| row["wrong"] == 0), "bytes are wrong: {result}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn wrong_bytes_other_devices_or_mtus_and_missing_sizes_do_not_pass() {
        let json = |nic, mtu, wrong, rows| {
            let rows = vec![serde_json::json!({ "wrong": wrong }); rows];
            serde_json::json!({ "transport": "ib", "nic": nic, "path_mtu": mtu, "rows": rows })
                .to_string()
        };
        assert!(check(&json("rxe_a", 1024, 0, 5), "rxe_a").is_ok());
        assert!(check(&json("soft0", 1024, 0, 5), "rxe_a").is_err());
        assert!(check(&json("rxe_a", 4096, 0, 5), "rxe_a").is_err());
        assert!(check(&json("rxe_a", 1024, 1, 5), "rxe_a").is_err());
        assert!(check(&json("rxe_a", 1024, 0, 4), "rxe_a").is_err());
        assert!(check("", "rxe_a").is_err());
    }
}
