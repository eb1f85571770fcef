//! What the command logs, and how.

use crate::*;

/// Runs a short `invar perf` on the software NIC with these variables, and returns the log.
fn log_of(variables: &[(&str, &str)]) -> String {
    let mut command = invar(&["perf", "-b", "8", "-e", "8", "-n", "10"]);
    command.env("INVAR_TRANSPORT", "soft");
    log_of_run(command, variables)
}

fn log_of_run(mut command: Command, variables: &[(&str, &str)]) -> String {
    command.envs(variables.iter().copied());
    let outcome = Run::start(&mut command).wait();
    outcome.ok();
    outcome.stderr
}

#[test]
fn nccls_variables_choose_level_and_subsystems() {
    let info = log_of(&[("NCCL_DEBUG", "INFO")]);
    let count = |log: &str, text: &str| log.lines().filter(|line| line.contains(text)).count();
    assert!(count(&info, "connected") >= 2, "{info}");
    assert!(info.lines().all(|line| !line.starts_with("invar: debug")), "{info}");
    assert!(info.contains("\ninvar: info: NET: "), "the lines have their subsystem: {info}");
    let init = log_of(&[("NCCL_DEBUG", "info"), ("NCCL_DEBUG_SUBSYS", "INIT")]);
    assert_eq!(count(&init, "connected"), 0, "{init}");
    // Invar's own variable wins.
    let warn = log_of(&[("NCCL_DEBUG", "INFO"), ("INVAR_LOG", "warn")]);
    assert_eq!(count(&warn, "connected"), 0, "{warn}");
    let debug = log_of(&[("INVAR_LOG", "debug")]);
    assert!(count(&debug, "the handshake") >= 8, "{debug}");
}

#[test]
fn connections_over_tcp_log_their_ends_and_the_steps_of_the_handshake() {
    let run = |level| {
        let variables = [("INVAR_TRANSPORT", "socket"), ("INVAR_LOG", level)];
        log_of_run(invar(&["perf", "-b", "8", "-e", "8", "-n", "10"]), &variables)
    };
    let info = run("info");
    for side in ["connect: connected over ", "accept: connected over "] {
        let ends = |line: &&str| line.contains(side) && line.contains(" to peer ");
        assert!(info.lines().any(|line| ends(&line)), "{side}: {info}");
    }
    assert!(!info.contains("the handshake"), "{info}");
    let debug = run("debug");
    let steps = debug.lines().filter(|line| line.contains("the handshake")).count();
    assert!(steps >= 5 && debug.contains("the hello of socket 0 of "), "{debug}");
}

#[test]
fn a_rank_logs_by_what_it_reaches_the_others() {
    let log = log_of_run(
        invar(&["coll", "all_reduce", "-b", "8", "-e", "8", "-n", "1"]),
        &[("INVAR_LOG", "info")],
    );
    assert!(log.contains("rank 0 of ") && log.contains(" channels over shared memory"), "{log}");
}

#[test]
fn a_log_in_json_is_an_object_a_line() {
    let log = log_of(&[("INVAR_LOG", "trace"), ("INVAR_LOG_FORMAT", "json")]);
    let lines: Vec<_> = log.lines().map(json).collect();
    let has = |key: &str, value: &str| lines.iter().any(|line| line[key] == value);
    assert!(has("subsystem", "NET") && has("level", "info"), "{log}");
    assert!(lines.iter().all(|line| line["message"].is_string() && line["pid"].is_u64()), "{log}");
    // The recorder's events.
    assert!(lines.iter().any(|line| line["module"] == "invar::raw::recorded"), "{log}");
}
