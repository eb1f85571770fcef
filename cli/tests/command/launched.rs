//! Processes that a launcher started, by the variables that it sets.

use crate::*;

/// The variables of torchrun for one of its processes.
fn torchrun(command: &mut Command, job: &str, rank: usize, nranks: usize) {
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", nranks.to_string());
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", "29500");
    command.env("TORCHELASTIC_RUN_ID", format!("{job} {}", std::process::id()));
}

/// Starts all ranks of a job, the last one first.
fn job(name: &str, nranks: usize, args: &[&str], set: &[(&str, &str)]) -> Vec<Outcome> {
    let start = |rank| {
        let mut command = invar(args);
        torchrun(&mut command, name, rank, nranks);
        Run::start(command.envs(set.iter().copied()))
    };
    let runs: Vec<Run> = (0..nranks).rev().map(start).collect();
    let mut outcomes: Vec<Outcome> = runs.into_iter().map(Run::wait).collect();
    outcomes.reverse();
    outcomes
}

const COLL: [&str; 10] = ["coll", "all_gather", "-b", "4K", "-e", "4K", "-n", "5", "--json", "-"];

#[test]
fn ranks_of_a_launcher_measure_together() {
    let outcomes = job("measure", 3, &COLL, &[("INVAR_COLL_SECRET", "a word")]);
    for outcome in &outcomes {
        outcome.ok();
    }
    let result = json(&outcomes[0].stdout);
    assert_eq!((&result["nranks"], &result["rows"][0]["wrong"]), (&3.into(), &0.into()));
    assert_eq!(result["hosts"][0]["ranks"], serde_json::json!([0, 1, 2]));
    assert!(outcomes[1].stdout.is_empty(), "rank 0 prints");
    assert!(!outcomes[0].stderr.contains("can join"), "{}", outcomes[0].stderr);
}

#[test]
fn a_secret_that_others_can_guess_is_told_once() {
    let outcomes = job("guess", 2, &COLL, &[]);
    let said =
        |outcome: &Outcome| outcome.ok().stderr.matches("INVAR_COLL_SECRET is not set").count();
    assert_eq!(outcomes.iter().map(said).collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn two_processes_of_a_launcher_are_server_and_client() {
    let args = ["perf", "-b", "64", "-e", "64", "-n", "20", "--json", "-"];
    let outcomes = job("pair", 2, &args, &[]);
    assert_eq!(outcomes[0].ok().stdout, "");
    let result = json(&outcomes[1].ok().stdout);
    assert_eq!(result["rows"][0]["wrong"], 0);
    for outcome in job("three", 3, &args, &[]) {
        let text = "torchrun has started 3 processes: invar perf measures between 2\n";
        outcome.ended(USAGE, text);
    }
}

#[test]
fn a_launcher_of_one_process_changes_nothing() {
    for args in [&COLL[..], &["perf", "-b", "8", "-e", "8", "-n", "5", "--json", "-"]] {
        let mut command = invar(args);
        torchrun(&mut command, "one", 0, 1);
        let result = json(&Run::start(&mut command).wait().ok().stdout);
        assert_eq!(result["rows"][0]["wrong"], 0, "{result}");
    }
}

#[test]
fn what_a_launcher_says_wrong_is_named() {
    let mut command = invar(&COLL);
    torchrun(&mut command, "wrong", 2, 2);
    let outcome = Run::start(&mut command).wait();
    outcome.ended(USAGE, "torchrun says that this is rank 2 of 2");
}

#[test]
fn a_pod_that_does_not_know_the_number_of_pods_measures_nothing() {
    for args in [&COLL[..], &["perf", "-b", "8", "-e", "8", "-n", "5"]] {
        let outcome = run_in(&[("JOB_COMPLETION_INDEX", "0")], args);
        outcome.ended(USAGE, "add WORLD_SIZE");
        assert_eq!(outcome.stdout, "");
    }
}
