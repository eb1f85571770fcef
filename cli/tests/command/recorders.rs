//! The flight recorders of processes that were killed.

use std::fs;

use invar_testkit::wait::until;
use rustix::process::{Pid, Signal, kill_process};

use crate::metrics::{Dir, perf, perf_with, ranks};
use crate::*;

/// The records of a process, or nothing if it has none.
fn recorded(dir: &Dir, pid: &str) -> Option<serde_json::Value> {
    let outcome = Run::start(&mut dir.invar(&["inspect", "--json", pid])).wait();
    (outcome.status == Some(0)).then(|| json(&outcome.stdout))
}

/// Whether a connection of a process is recorded for which the condition holds.
fn any_connection(dir: &Dir, pid: &str, holds: fn(&serde_json::Value) -> bool) -> bool {
    recorded(dir, pid)
        .is_some_and(|of| of["connections"].as_array().is_some_and(|all| all.iter().any(holds)))
}

/// The text of the file `name` that `invar trace` makes of processes, by their numbers or their records.
fn trace(dir: &Dir, of: &[&str], name: &str) -> String {
    let file = dir.path().join(name);
    let output = file.display().to_string();
    let args = [&["trace"][..], of, &["-o", &output]].concat();
    Run::start(&mut dir.invar(&args)).wait().ok();
    fs::read_to_string(&file).unwrap()
}

/// The events of the trace of processes.
fn trace_events(dir: &Dir, of: &[&str]) -> Vec<serde_json::Value> {
    let trace = json(&trace(dir, of, "trace.json"));
    trace["traceEvents"].as_array().expect("an array").clone()
}

#[test]
fn the_recorder_of_a_killed_process_shows_its_connection_and_what_it_waited_for() {
    let dir = Dir::new();
    let [server, client] = perf(&dir, "");
    let pid = server.0.id().to_string();
    let ask = |args: &[&str]| Run::start(&mut dir.invar(args)).wait();
    let any = |holds| any_connection(&dir, &pid, holds);
    let inspected = || ask(&["inspect", &pid]).stdout;
    let waits_for_messages = |text: &str| {
        let mut waits = text.lines().filter_map(|line| line.strip_prefix("  waits for "));
        waits.any(|what| what.contains(" messages") && what.contains(", for "))
    };
    until("messages", || any(|of| of["done"].as_u64() > Some(0)));
    until("progress", || inspected().contains("s  progress "));
    kill_process(Pid::from_child(&client.0), Signal::STOP).unwrap();
    until("a wait", || any(|of| of["is_waiting"] == true));
    until("a wait for messages", || {
        let text = inspected();
        text.contains("s  waits  ") && waits_for_messages(&text)
    });
    kill_process(Pid::from_child(&server.0), Signal::KILL).unwrap();
    server.wait();
    let outcome = ask(&["inspect", &pid]);
    let text = &outcome.ok().stdout;
    assert!(text.starts_with(&format!("pid {pid} on ")) && text.contains(" has ended\n"), "{text}");
    assert!(text.contains("to peer 127.0.0.1:"), "{text}");
    let numbers =
        text.lines().filter(|line| line.contains(" bytes, ") && line.contains(" stalls, "));
    assert!(numbers.clone().any(|line| line.contains(" 1 of 1 rails up")), "{text}");
    assert!(numbers.clone().any(|line| !line.starts_with("  0 bytes")), "{text}");
    for event in ["s  opened ", "s  progress ", "s  waits  "] {
        assert!(text.contains(event), "no {event:?} in {text}");
    }
    assert!(waits_for_messages(text), "{text}");
    let events = trace_events(&dir, &[&pid]);
    let has =
        |phase: &str, name: &str| events.iter().any(|of| of["ph"] == phase && of["name"] == name);
    assert!(has("i", "opened") && has("X", "waits"), "{events:?}");
    // The server's file as of a host whose clock is a minute ahead.
    let inspected = json(&ask(&["inspect", "--json", &pid]).ok().stdout);
    let mut bytes = fs::read(inspected["file"].as_str().expect("a path")).unwrap();
    let unix_offset: &mut [u8; 8] = bytes[16..].first_chunk_mut().unwrap();
    *unix_offset = (i64::from_le_bytes(*unix_offset) + 60_000_000_000).to_le_bytes();
    let other_host = dir.path().join("other-host.rec");
    fs::write(&other_host, bytes).unwrap();
    let client_pid = client.0.id().to_string();
    let events = trace_events(&dir, &[&client_pid, &other_host.display().to_string()]);
    let opened =
        events.iter().filter(|of| of["name"] == "opened").filter_map(|of| of["ts"].as_f64());
    let (count, last_us) = opened.fold((0, 0.0), |(n, last), us| (n + 1, f64::max(last, us)));
    assert!(count >= 2 && last_us < 30e6, "{events:?}");
}

#[test]
fn a_process_whose_connection_failed_leaves_its_recorder() {
    let dir = Dir::new();
    let [server, client] = perf(&dir, "");
    let pid = client.0.id().to_string();
    // More than are checked before the timed messages, since no connection waits between the two.
    let has_timed = |of: &serde_json::Value| of["done"].as_u64() > Some(10_000);
    until("timed messages", || any_connection(&dir, &pid, has_timed));
    kill_process(Pid::from_child(&server.0), Signal::KILL).unwrap();
    assert_eq!(client.wait().status, Some(3));
    let outcome = Run::start(&mut dir.invar(&["inspect", &pid])).wait();
    let text = &outcome.ok().stdout;
    assert!(text.contains(" has ended\n") && text.contains("s  error "), "{text}");
}

#[test]
fn a_rank_shows_its_operations_and_for_which_rank_it_waits() {
    let dir = Dir::new();
    let runs = ranks(&dir, "64K", "");
    let pids = runs.each_ref().map(|run| run.0.id().to_string());
    let ask = |args: &[&str]| Run::start(&mut dir.invar(args)).wait();
    let last = |pid: &str| {
        let found = recorded(&dir, pid)?;
        found["ranks"][0]["operations"].as_array()?.last().cloned()
    };
    for pid in &pids {
        until("an operation", || last(pid).is_some_and(|of| of["bytes"] == 64 << 10));
    }
    kill_process(Pid::from_child(&runs[1].0), Signal::STOP).unwrap();
    until("a wait for rank 1", || {
        let found = last(&pids[0]);
        found.is_some_and(|of| of["took_us"].is_null() && of["longest_wait_rank"] == 1)
    });
    runs.iter().for_each(|run| kill_process(Pid::from_child(&run.0), Signal::KILL).unwrap());
    runs.into_iter().for_each(|run| drop(run.wait()));
    let outcome = ask(&["inspect", &pids[0]]);
    let text = &outcome.ok().stdout;
    assert!(text.contains("\nrank 0 of 2, number "), "{text}");
    assert!(text.contains(" all_reduce of 16384 F32, Sum by TwoShot: runs, waited "), "{text}");
    let both = [pids[0].as_str(), &pids[1]];
    let events = trace_events(&dir, &both);
    for pid in 0..2 {
        let has = |key: &str, value: &str| {
            let value_of = |of: &serde_json::Value| of.pointer(key).cloned();
            let mut of_rank = events.iter().filter(|of| of["pid"] == pid).filter_map(value_of);
            of_rank.any(|of| of == value)
        };
        assert!(has("/args/name", &format!("rank {pid} of 2")), "{events:?}");
        assert!(has("/name", "all_reduce of 16384 F32, Sum by TwoShot"), "{events:?}");
        assert!(pid == 1 || has("/name", "waits for rank 1"), "{events:?}");
    }
    let svg = trace(&dir, &both, "trace.svg");
    for text in ["rank 0 of 2", "rank 1 of 2", "operation", "wait", &pids[0], &pids[1]] {
        assert!(svg.starts_with("<svg ") && svg.contains(text), "no {text:?} in {svg}");
    }
}

#[test]
fn a_client_whose_server_is_stopped_names_the_process_of_the_server() {
    let dir = Dir::new();
    let [server, client] = perf_with(&dir, [&[], &[("INVAR_STALL_MS", "500")]]);
    let pid = client.0.id().to_string();
    // More than are checked before the timed messages: from now on the client only sends.
    let has_timed = |of: &serde_json::Value| of["done"].as_u64() > Some(10_000);
    until("timed messages", || any_connection(&dir, &pid, has_timed));
    kill_process(Pid::from_child(&server.0), Signal::STOP).unwrap();
    // The client logs a verdict before it records it.
    let is_told = |of: &serde_json::Value| {
        of["verdict"].as_str().is_some_and(|verdict| verdict.contains(" does not answer for "))
    };
    until("a verdict", || any_connection(&dir, &pid, is_told));
    kill_process(Pid::from_child(&client.0), Signal::KILL).unwrap();
    let stderr = client.wait().stderr;
    let culprit = format!("the process of the receiver (pid {} on ", server.0.id());
    let names_it = |line: &str| {
        line.split_once(&culprit).is_some_and(|(_, why)| {
            why.contains(" does not answer for ") && why.contains("it is stopped (SIGSTOP")
        })
    };
    assert!(stderr.lines().any(names_it), "{stderr}");
}

/// The bars of messages in the trace of a process.
fn message_bars(dir: &Dir, pid: &str) -> Vec<serde_json::Value> {
    let is_bar = |of: &serde_json::Value| of["ph"] == "X" && of["args"]["direction"].is_string();
    trace_events(dir, &[pid]).into_iter().filter(is_bar).collect()
}

#[test]
fn at_level_2_each_message_is_listed_with_its_times_and_is_a_bar_in_a_trace() {
    for transport in ["soft", "socket"] {
        let dir = Dir::over(transport);
        let level = [("INVAR_RECORDER", "2")];
        let runs = perf_with(&dir, [&level, &level]);
        for (run, direction) in runs.iter().zip(["receive", "send"]) {
            let pid = run.0.id().to_string();
            let has_tested = |of: &serde_json::Value| {
                of["messages"].as_array().is_some_and(|all| {
                    all.iter().any(|of| of["bytes"] == 64 << 10 && of["untested_us"].is_number())
                })
            };
            until("a tested message", || any_connection(&dir, &pid, has_tested));
            let start = format!("  {direction} ");
            let is_listed = |line: &str| {
                line.contains(&start)
                    && [": 65536 bytes, tag 0x", ", request ", ": waited ", " us, tested "]
                        .iter()
                        .all(|part| line.contains(part))
            };
            until("a line for it", || {
                let outcome = Run::start(&mut dir.invar(&["inspect", &pid])).wait();
                outcome.ok().stdout.lines().any(is_listed)
            });
            let bars = message_bars(&dir, &pid);
            let is_whole = |of: &serde_json::Value| {
                let args = &of["args"];
                of["name"] == format!("{direction} of 65536 bytes")
                    && args["direction"] == direction
                    && args["bytes"] == 64 << 10
                    && ["number", "request", "tag"].iter().all(|key| args[key].is_u64())
            };
            assert!(bars.iter().any(is_whole), "{transport}: {bars:?}");
            let number = |of: &serde_json::Value, key: &str| of[key].as_f64().expect("a number");
            for of in &bars {
                let (start, dur) = (number(of, "ts"), number(of, "dur"));
                // Text may round the sum up.
                let during = start..start + dur - 1e-3;
                let follows = |other: &serde_json::Value| {
                    other["tid"] != of["tid"]
                        || other == of
                        || !during.contains(&number(other, "ts"))
                };
                assert!(bars.iter().all(follows), "{transport}: {of} and others of its row");
            }
        }
    }
}

#[test]
fn at_level_1_no_message_is_kept() {
    let dir = Dir::new();
    let level = [("INVAR_RECORDER", "1")];
    let runs = perf_with(&dir, [&level, &level]);
    for run in &runs {
        let pid = run.0.id().to_string();
        until("messages", || any_connection(&dir, &pid, |of| of["done"].as_u64() > Some(0)));
        let has_any = |of: &serde_json::Value| of["messages"] != serde_json::json!([]);
        assert!(!any_connection(&dir, &pid, has_any));
        assert!(message_bars(&dir, &pid).is_empty());
    }
}
