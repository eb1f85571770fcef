//! `invar settings`.

use crate::*;

/// Runs `invar settings` in the environment that `set` gives, and returns what it prints of a variable.
fn shown(name: &str, set: &[(&str, &str)]) -> serde_json::Value {
    let rows = json(&run_in(set, &["settings", "--json", name]).ok().stdout);
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
    let secret = ("INVAR_COLL_SECRET", "open-sesame");
    let outcome = run_in(&[secret], &["settings", "INVAR_COLL_SECRET"]);
    let text = &outcome.ok().stdout;
    assert!(text.starts_with("INVAR_COLL_SECRET=********  from: environment\n"), "{text}");
    assert!(!text.contains("open-sesame"));
}

#[test]
fn a_variable_that_is_refused_is_explained() {
    let outcome = run_in(&[("INVAR_FIFO_DEPTH", "7")], &["settings", "INVAR_FIFO_DEPTH"]);
    assert_eq!(outcome.status, USAGE);
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
