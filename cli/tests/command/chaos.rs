//! `invar perf --chaos`: links go down under a connection that goes on.

use crate::*;

#[test]
fn a_connection_outlives_links_that_go_down_at_random_and_every_byte_is_checked() {
    if invar_testkit::namespaces::Hosts::or_skip(1500).is_none() {
        return;
    }
    let command = Command::new(env!("CARGO_BIN_EXE_invar"));
    let plot = format!("{}/chaos.svg", env!("CARGO_TARGET_TMPDIR"));
    let mut command = bare(command, &["perf", "--chaos", "--duration", "4", "--plot"]);
    let outcome = Run::start(command.arg(&plot)).wait();
    outcome.ok();
    let svg = std::fs::read_to_string(&plot).unwrap();
    assert!(svg.starts_with("<svg ") && svg.contains("is down"), "{svg}");
    let (rows, summary) = outcome.stdout.rsplit_once("outages ").expect("a summary");
    assert!(rows.contains("DOWN"), "{rows}");
    let number = |text: &str| text.trim().split(' ').next().and_then(|n| n.parse::<f64>().ok());
    let parts: Vec<f64> = summary.split(", ").filter_map(number).collect();
    let [outages, _average, checked, wrong] = parts[..] else { panic!("{summary}") };
    assert!(outages >= 1.0 && checked > 1e6 && wrong == 0.0, "{summary}");
}
