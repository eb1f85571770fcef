//! The command with the NIC, as a user runs it.

use std::process::{Command, Output};

use invar_testkit::shell;

/// Runs `unix-invar ARGS` with variables.
fn run(args: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unix-invar"));
    shell::clean(&mut command).args(args).envs(variables.iter().copied());
    command.output().expect("a process")
}

fn json(output: &Output) -> serde_json::Value {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}", output.status);
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn devices_lists_the_nic_first() {
    let devices = json(&run(&["devices", "--json"], &[]));
    let nic = &devices[0];
    assert_eq!((&nic["name"], &nic["kind"]), (&"unix0".into(), &"custom".into()), "{devices}");
}

#[test]
fn perf_moves_messages_between_two_processes_over_the_nic() {
    let args =
        ["perf", "-b", "0", "-e", "1M", "-f", "64", "-n", "20", "--recvs", "2", "--json", "-"];
    // Without a word the provided NIC goes before all others.
    for variables in [&[][..], &[("INVAR_TRANSPORT", "custom")]] {
        let result = json(&run(&args, variables));
        assert_eq!(result["transport"], "custom");
        assert_eq!((&result["nic"], &result["peer_nic"]), (&"unix0".into(), &"unix0".into()));
        let rows = result["rows"].as_array().expect("rows");
        assert_eq!(rows.len(), 5, "{result}");
        assert!(rows.iter().all(|row| row["wrong"] == 0), "{result}");
    }
}

#[test]
fn perf_takes_another_transport_that_is_asked_for() {
    let args = ["perf", "-b", "8", "-e", "8", "-n", "5", "--json", "-"];
    assert_eq!(json(&run(&args, &[("INVAR_TRANSPORT", "soft")]))["transport"], "soft");
}

#[test]
fn ranks_reduce_over_the_nic() {
    let args = ["coll", "all_reduce", "-b", "4K", "-e", "1M", "-f", "256", "--json", "-"];
    let result = json(&run(&args, &[("NCCL_SHM_DISABLE", "1")]));
    assert!(
        result["transport"].as_str().is_some_and(|word| word.starts_with("custom")),
        "{result}"
    );
    let rows = result["rows"].as_array().expect("rows");
    assert!(rows.len() == 2 && rows.iter().all(|row| row["wrong"] == 0), "{result}");
}
