//! `invar settings`.

use crate::*;

/// Runs `invar settings` in the environment that `set` gives, and returns what it prints of a variable.
fn shown(name: &str, set: &[(&str, &str)]) -> serde_json::Value {
    let mut command = invar(&["settings", "--json", name]);
    let outcome = Run::start(command.envs(set.iter().copied())).wait();
    let rows = json(&outcome.ok().stdout);
    assert_eq!(rows.as_array().unwrap().len(), 1);
    rows[0].clone()
}

#[test]
fn each_value_says_where_it_comes_from() {
    let unset = shown("NCCL_IB_TIMEOUT", &[]);
    assert_eq!([&unset["value"], &unset["source"]], ["20", "default"]);
    assert_eq!([&unset["unit"], &unset["values"]], ["exponent", "a number from 0 to 31"]);
    let set = shown("NCCL_IB_TIMEOUT", &[("NCCL_IB_TIMEOUT", "22")]);
    assert_eq!([&set["value"], &set["source"], &set["default"]], ["22", "environment", "20"]);
}

#[test]
fn a_secret_is_not_shown() {
    let mut command = invar(&["settings", "INVAR_COLL_SECRET"]);
    let outcome = Run::start(command.env("INVAR_COLL_SECRET", "open-sesame")).wait();
    let text = &outcome.ok().stdout;
    assert!(text.starts_with("INVAR_COLL_SECRET=********  from: environment\n"), "{text}");
    assert!(!text.contains("open-sesame"));
}

#[test]
fn a_variable_that_does_not_exist_is_refused() {
    let outcome = run(&["settings", "INVAR_NONESUCH"]);
    assert_eq!(outcome.status, Some(2));
    assert!(outcome.line().contains("INVAR_NONESUCH: Invar reads no such variable"));
}

#[test]
fn a_variable_that_is_refused_is_explained() {
    let mut command = invar(&["settings", "INVAR_FIFO_DEPTH"]);
    let outcome = Run::start(command.env("INVAR_FIFO_DEPTH", "7")).wait();
    assert_eq!(outcome.status, Some(2));
    assert!(
        outcome.stdout.starts_with("INVAR_FIFO_DEPTH=256  from: default\n"),
        "{}",
        outcome.stdout
    );
    assert!(
        outcome.stderr.contains("INVAR_FIFO_DEPTH=7: must be a power of two"),
        "{}",
        outcome.stderr
    );
}
