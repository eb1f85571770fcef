//! Nobody reads what the command prints.

use crate::*;

/// The exit status that a shell shows for a program that SIGPIPE has ended.
const UNREAD: Option<i32> = Some(141);
const SMALL: [&str; 4] = ["-e", "8", "-n", "2"];

/// The command, with a stdout that has no reader from the beginning on.
fn unread(args: &[&str]) -> Outcome {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = invar(args);
    command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped());
    let run = Run(Killed(command.spawn().expect("a process")));
    // It has the only other end of the pipe.
    drop(command);
    run.wait()
}

/// Errors: what stderr has beside a table and what `invar devices` says of this host.
fn errors(outcome: &Outcome) -> Vec<&str> {
    let lines = outcome.stderr.lines().filter(|line| line.starts_with("invar: "));
    lines.filter(|line| !line.starts_with("invar: no ")).collect()
}

#[test]
fn every_command_ends_without_a_word() {
    for args in [
        &["devices"][..],
        &["devices", "--json"],
        &["doctor", "--verbose"],
        &["doctor", "--list"],
        &["perf"],
        &["perf", "--json", "-"],
        &["perf", "--server", "127.0.0.1:0"],
        &["coll", "all_reduce"],
        &["coll", "all_reduce", "--no-check"],
        &["coll", "all_reduce", "--ranks", "3", "--json", "-"],
    ] {
        let takes_sizes = !["devices", "doctor"].contains(&args[0]) && !args.contains(&"--server");
        let outcome = unread(&[args, if takes_sizes { &SMALL } else { &[] }].concat());
        assert_eq!(outcome.status, UNREAD, "{args:?}: {}", outcome.stderr);
        assert_eq!(errors(&outcome), [""; 0], "{args:?}");
    }
    let outcome = unread(&["--help"]);
    assert_eq!((outcome.status, outcome.stderr.as_str()), (Some(0), ""));
}

#[test]
fn a_reader_that_leaves_ends_a_measurement_on_all_processes() {
    for command in ["perf", "coll all_reduce --ranks 3"] {
        let args: Vec<&str> = command.split(' ').chain(["-e", "1M"]).collect();
        let mut run = Run::start(&mut invar(&args));
        assert!(run.line().starts_with("# invar "), "{command}");
        drop(run.0.stdout.take());
        let outcome = run.wait();
        assert_eq!((outcome.status, outcome.stderr.as_str()), (UNREAD, ""), "{command}");
    }
}

#[test]
fn a_table_on_stderr_needs_no_reader_where_the_json_has_one() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = invar(&[&["perf", "--json", "-"], &SMALL[..]].concat()).stderr(writer).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(json(&String::from_utf8(output.stdout).unwrap())["rows"][0]["size"], 8);
}
