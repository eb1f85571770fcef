//! Injects faults into connections and communicators of processes on two hosts, and checks that every process
//! names the end, the rank or the network at fault: `cargo xtask stuck`.
//!
//! The hosts are network namespaces. The processes are copies of this program, see `end.rs` and `rank.rs`.
#![allow(clippy::print_stdout, reason = "a command line tool")]

mod case;
mod end;
mod family;
mod rank;
mod run;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["end", dir, role, fault] => end::run(dir.as_ref(), role, fault),
        ["rank", dir, rank, fault] => rank::run(dir.as_ref(), rank, fault),
        [] => run::run_all(""),
        [only] => run::run_all(only),
        _ => panic!("usage: stuck [PART OF A CASE'S NAME]"),
    }
}
