//! Collectives among processes.

use std::fs;

use invar_testkit::unused;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::*;

/// One rank of a communicator whose ranks are started one by one.
fn rank(root: &str, rank: u32, ranks: u32, secret: &str) -> Command {
    let mut command = invar(&["coll", "all_reduce", "-b", "4K", "-e", "64K", "-f", "16"]);
    command.args(["--rank", &rank.to_string(), "--ranks", &ranks.to_string(), "--root", root]);
    command.env("INVAR_COLL_SECRET", secret);
    command
}

/// Iterations. As many as a free machine does in a while may take a busy one for ever.
const FEW: [&str; 2] = ["-n", "20"];

fn rows(outcome: &Outcome) -> (Value, Vec<Value>) {
    let json = json(&outcome.stdout);
    let rows = json["rows"].as_array().unwrap().clone();
    (json, rows)
}

#[test]
fn ranks_on_this_host_agree_on_every_operation() {
    for operation in [
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "broadcast",
        "reduce",
        "sendrecv",
        "all_to_all",
    ] {
        let mut command = invar(&["coll", operation, "--ranks", "3", "-b", "4", "-e", "1M"]);
        command.args(["-f", "64", "-n", "5", "-d", "half", "-o", "max", "-r", "1", "--json", "-"]);
        let outcome = Run::start(&mut command).wait();
        let (json, rows) = rows(outcome.ok());
        assert_eq!((json["nranks"].as_u64(), rows.len()), (Some(3), 4), "{json}");
        for row in rows {
            assert_eq!(row["op"], operation);
            assert_eq!((&row["wrong"], &row["type"]), (&Value::from(0), &Value::from("half")));
            assert!(row["busbw_gbytes_per_s"].is_number() && row["count"].is_u64(), "{row}");
            let has_one_buffer = !["sendrecv", "all_to_all"].contains(&operation);
            let in_place = &row["in_place"];
            assert_eq!(in_place["wrong"] == 0, has_one_buffer, "{row}");
            assert_eq!(in_place["busbw_gbytes_per_s"].is_number(), has_one_buffer, "{row}");
        }
    }
}

#[test]
fn the_operation_may_come_behind_the_end_of_the_flags() {
    let flags = ["coll", "--ranks", "3", "-b", "8", "-e", "8", "-n", "2", "--json", "-", "--"];
    let outcome = Run::start(invar(&flags).arg("all_gather")).wait();
    let (json, rows) = rows(outcome.ok());
    assert_eq!((json["nranks"].as_u64(), rows.len()), (Some(3), 1), "{json}");
}

#[test]
fn ranks_may_share_no_memory() {
    for transport in ["soft", "socket"] {
        let env = [("NCCL_SHM_DISABLE", "1"), ("INVAR_TRANSPORT", transport)];
        let sizes = ["-e", "1M", "-f", "32", "-n", "3"];
        let outcome = run_in(&env, &[&["coll", "all_reduce", "--json", "-"], &sizes[..]].concat());
        let (_, rows) = rows(outcome.ok());
        assert!(rows.iter().all(|row| row["wrong"] == 0), "{transport}: {rows:?}");
    }
}

#[test]
fn ranks_that_are_started_one_by_one_meet_at_the_root() {
    let root = unused::address().to_string();
    // The root comes last.
    let start = |number| Run::start(rank(&root, number, 3, "a word").args(FEW));
    let ranks = [2, 1, 0].map(start);
    for (outcome, number) in ranks.map(Run::wait).into_iter().zip([2, 1, 0]) {
        assert_eq!(outcome.ok().stdout.is_empty(), number > 0, "rank 0 prints the table");
    }
}

#[test]
fn who_has_another_secret_or_size_is_told_so_and_the_others_go_on() {
    let root = unused::address().to_string();
    let zero = Run::start(rank(&root, 0, 2, "a word").args(FEW));
    let stranger = Run::start(&mut rank(&root, 1, 2, "another")).wait();
    let text = "the listener hung up before it had proved who it is: it knows another secret";
    stranger.ended(FAILED, text);
    let larger = Run::start(&mut rank(&root, 1, 3, "a word")).wait();
    let text = "refused: rank 1 counts on 3 ranks, the communicator has 2";
    assert!(larger.line().ends_with(text), "{}", larger.line());
    Run::start(rank(&root, 1, 2, "a word").args(FEW)).wait().ok();
    zero.wait().ok();
}

#[test]
fn ranks_with_different_flags_all_name_the_first_difference() {
    for (flags, says) in [
        (&["-n", "21"][..], "--iters is 20 at rank 0 and 21 at rank 1;"),
        (&["-n", "20", "-d", "int8"], "--type is float at rank 0 and int8 at rank 1;"),
        (&["-n", "20", "-o", "max"], "--redop is sum at rank 0 and max at rank 1;"),
    ] {
        let root = unused::address().to_string();
        let two = Run::start(rank(&root, 2, 3, "a word").args(FEW));
        let one = Run::start(rank(&root, 1, 3, "a word").args(flags));
        let zero = Run::start(rank(&root, 0, 3, "a word").args(FEW));
        for outcome in [zero, one, two].map(Run::wait) {
            outcome.ended(USAGE, says);
            assert_eq!(outcome.stdout, "", "nothing was measured");
        }
    }
    let root = unused::address().to_string();
    let zero = Run::start(rank(&root, 0, 2, "a word").args(FEW));
    let mut other = invar(&["coll", "broadcast", "-b", "4K"]);
    other.args(["--rank", "1", "--ranks", "2", "--root", &root]);
    let one = Run::start(other.env("INVAR_COLL_SECRET", "a word"));
    let says = "the operation is all_reduce at rank 0 and broadcast at rank 1;";
    for outcome in [zero, one].map(Run::wait) {
        outcome.ended(USAGE, says);
    }
}

#[test]
fn the_table_names_the_transport_and_what_does_not_apply() {
    let table = |flags: &[&str], set: &[(&str, &str)]| {
        let args = [&["coll", "all_reduce", "-e", "8", "-n", "2"], flags].concat();
        run_in(set, &args).ok().stdout.clone()
    };
    let (alone, soft) = (("NCCL_SHM_DISABLE", "1"), ("INVAR_TRANSPORT", "soft"));
    let devices = json(&run(&["devices", "--json"]).stdout);
    let devices = devices.as_array().unwrap();
    let name = |kind: &str| {
        let on_loopback = |d: &&Value| d["kind"] == kind && d["netdev"] == "lo";
        let found = devices.iter().find(on_loopback);
        found.map(|device| device["name"].as_str().unwrap().to_owned())
    };
    let on_lo = name("soft").expect("loopback");
    assert!(table(&[], &[]).contains(" 2 ranks, transport shared memory\n#"));
    assert!(table(&[], &[alone, soft]).contains(&format!("transport soft ({on_lo})\n")));
    let named = table(&["--nic", &on_lo], &[alone]);
    assert!(named.contains(&format!("transport soft ({on_lo})\n")), "{named}");
    for (flags, set, asked) in [
        (&[][..], &[soft][..], "INVAR_TRANSPORT=soft".to_owned()),
        (&["--nic", &on_lo], &[], format!("--nic {on_lo}")),
    ] {
        let line = format!("# {asked} does not apply: all ranks share memory; NCCL_SHM_DISABLE=1");
        let table = table(flags, set);
        assert!(table.contains(&line), "{table}");
    }
    let outcome = run_in(&[alone], &["coll", "all_reduce", "-e", "8", "--nic", "mlx5_9"]);
    assert!(outcome.status > Some(1), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("no device is called 'mlx5_9'; there is: "));
}

#[test]
fn a_rank_without_a_secret_is_refused() {
    let outcome = Run::start(&mut rank("127.0.0.1:1", 1, 2, "")).wait();
    let text = "INVAR_COLL_SECRET is not set: rank 0 prints one that lets this rank in\n";
    outcome.ended(USAGE, text);
}

#[test]
fn rank_0_makes_up_a_secret_where_none_is_set_and_prints_it() {
    let root = unused::address().to_string();
    let outcome = Run::start(rank(&root, 0, 1, "").args(FEW)).wait();
    let secret = outcome.line().split_once("the other ranks need INVAR_COLL_SECRET=").unwrap().1;
    assert_eq!(secret.len(), 32, "{secret}");
    assert_eq!(outcome.status, Some(0));
}

#[test]
fn ranks_on_this_host_have_a_secret_of_their_own_where_none_is_set() {
    run_in(&[("INVAR_COLL_SECRET", "")], &["coll", "all_reduce", "-e", "8", "-n", "1"]).ok();
}

#[test]
fn a_file_that_cannot_be_written_is_named_once_and_at_once() {
    let outcome = run(&["coll", "all_reduce", "-e", "8", "--json", "/no/such/place.json"]);
    let line = "invar: creating /no/such/place.json: No such file or directory (os error 2)\n";
    outcome.ended(FAILED, line);
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let root = unused::address().to_string();
    let mut zero = rank(&root, 0, 2, "a word");
    let outcome = Run::start(zero.env("INVAR_CONNECT_TIMEOUT_MS", "500")).wait();
    outcome.ended(FAILED, "rank 1 of 2 did not join within 500ms");
}

/// Whatever they go over; rank 0 has the rendezvous.
#[test]
fn a_rank_that_is_killed_ends_the_others_who_name_it() {
    let ways = [("0", "socket"), ("1", "socket"), ("1", "soft")];
    for ((shm_disable, transport), victim) in ways.into_iter().flat_map(|w| [(w, 2), (w, 0)]) {
        let root = unused::address().to_string();
        let start = |number| {
            let mut command = rank(&root, number, 3, "a word");
            command.args(["-n", "100000000", "--no-check"]);
            command.env("NCCL_SHM_DISABLE", shm_disable).env("INVAR_TRANSPORT", transport);
            Run::start(&mut command)
        };
        let mut runs: Vec<(u32, Run)> = (0..3).map(|number| (number, start(number))).collect();
        // A rank watches the others once all have met.
        watch("the watching threads", || {
            runs.iter().all(|(_, run)| has_thread(run, "invar-watch"))
        });
        let mut killed = runs.swap_remove(victim);
        killed.1.0.kill().unwrap();
        for (_, run) in runs {
            run.wait().ended(FAILED, &format!("rank {victim}: "));
        }
    }
}

const DUMP: (&str, &str) = ("NCCL_PROXY_DUMP_SIGNAL", "10");

/// Signals a process once its dump thread runs. Returns the first line of the answer.
fn ask(run: &mut Run) -> String {
    watch("the dumping thread", || has_thread(run, "invar-dump"));
    kill_process(Pid::from_child(&run.0), Signal::USR1).unwrap();
    line_of(run.0.stderr.as_mut().expect("a pipe"))
}

/// Signals a process that can bear it again and again, to its end, and seldom enough that what it says
/// fits into the pipe.
fn ask_to_the_end(mut run: Run) -> Outcome {
    while run.0.try_wait().unwrap().is_none() {
        kill_process(Pid::from_child(&run.0), Signal::USR1).unwrap();
        thread::sleep(Duration::from_millis(100));
    }
    run.wait()
}

/// The signals come amid operations, the results of which are checked: of each size for about 0.2 s,
/// however fast the host is.
#[test]
fn ranks_say_how_they_stand_on_a_signal_and_go_on() {
    for (shm_disable, stand) in [
        ("0", "rank 1 of 2: links are in shared memory\n"),
        ("1", "rank 1 of 2: links over the network\nACTIVE LINKS\n"),
    ] {
        let root = unused::address().to_string();
        let start = |number: u32| {
            let mut command = invar(&["coll", "all_reduce", "-e", "64K", "-f", "16"]);
            command.args(["--rank", &number.to_string(), "--ranks", "2", "--root", &root]);
            command.env("INVAR_COLL_SECRET", "a word").env(DUMP.0, DUMP.1);
            command.env("NCCL_SHM_DISABLE", shm_disable).env("INVAR_TRANSPORT", "soft");
            Run::start(&mut command)
        };
        let mut one = start(1);
        assert_eq!(ask(&mut one), "rank 1 of 2: it has not joined yet\n");
        let zero = start(0);
        let one = ask_to_the_end(one);
        zero.wait().ok();
        let said = &one.ok().stderr;
        assert!(said.contains(stand), "{said}");
    }
}

#[test]
fn the_process_that_started_the_ranks_survives_the_signal_too() {
    let mut command = invar(&["coll", "all_reduce", "-e", "64", "-n", "2000"]);
    let mut run = Run::start(command.env(DUMP.0, DUMP.1));
    let said = ask(&mut run);
    assert!(said.starts_with(
        "invar: each rank is a process of its own; to print the state of each: kill -10"
    ));
    ask_to_the_end(run).ok();
}

/// Whether a process has a thread whose name begins so.
fn has_thread(run: &Run, name: &str) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", run.0.id())).into_iter().flatten().flatten();
    let mut names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.any(|of| of.starts_with(name))
}
