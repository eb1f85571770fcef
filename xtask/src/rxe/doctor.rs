//! Tests `invar doctor` in the guest: each fault that a shell command makes gets its name.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::guest;
use crate::shell::Shell;

/// Each row has a command that breaks the guest, the checks to run, and the findings that are expected.
const FAULTS: [(&str, &str, &[&str]); 8] = [
    ("", "verbs memlock ports gids pcie dma", &[]),
    ("", "mtu", &["mtu-small", "mtu-small", "mtu-small"]),
    ("ip link set veth0 down;", "ports", &["port-down", "port-down"]),
    ("rm /dev/infiniband/uverbs1;", "verbs", &["uverbs-file-missing"]),
    ("mv /dev/infiniband /dev/gone;", "verbs", &["dev-infiniband-missing"]),
    (
        "rm /etc/libibverbs.d/*;",
        "verbs",
        &["provider-missing", "provider-missing", "provider-missing"],
    ),
    ("unshare -n", "gids", &["gid-foreign", "gid-foreign", "gid-foreign"]),
    ("NCCL_IB_HCA=^rxe", "ports", &["hca-unknown"]),
];

pub(super) fn run(shell: &Shell, invar: &str) -> Result<()> {
    for (fault, checks, expected) in FAULTS {
        // A host with findings ends the command with 1.
        let line = format!("{fault} {invar} doctor --json {checks} || test $? = 1");
        let json = guest(shell, None, &line)?;
        check(&json, expected).with_context(|| format!("{line} in the guest"))?;
    }
    Ok(())
}

fn check(json: &str, expected: &[&str]) -> Result<()> {
    let report: Value = serde_json::from_str(json.trim()).with_context(|| json.to_owned())?;
    let findings = report["findings"].as_array().context("no list of findings")?;
    let ids: Vec<&str> = findings.iter().filter_map(|finding| finding["id"].as_str()).collect();
    ensure!(ids == expected, "the findings are {ids:?}, not {expected:?}: {json}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_findings_do_not_pass() {
        let report = r#"{"findings": [{"id": "port-down"}, {"id": "mtu-small"}]}"#;
        check(report, &["port-down", "mtu-small"]).unwrap();
        assert!(check(report, &["port-down"]).is_err());
        assert!(check(r#"{"findings": []}"#, &["port-down"]).is_err());
        assert!(check("", &[]).is_err());
    }
}
