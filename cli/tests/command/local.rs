//! `invar perf` with a second process of its own.

use invar_testkit::unused;

use crate::*;

#[test]
fn two_processes_measure_each_size_and_find_no_wrong_byte() {
    let outcome =
        run(&["perf", "-b", "0", "-e", "64K", "-f", "32", "-n", "40", "-w", "4", "--json", "-"]);
    let result = json(&outcome.ok().stdout);
    assert_eq!(result["transport"], "soft");
    assert_eq!(result["path_mtu"], 8128);
    assert_eq!(result["nic"], result["peer_nic"]);
    assert_eq!(result["check"], true);
    let rows = result["rows"].as_array().unwrap();
    let sizes: Vec<u64> = rows.iter().map(|row| row["size"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [0, 1, 32, 1024, 32768]);
    for row in rows {
        assert_eq!(row["iters"], 40);
        assert_eq!(row["wrong"], 0);
        let number = |value: &serde_json::Value| value.as_f64().unwrap();
        let (time_us, size) = (number(&row["time_us"]), number(&row["size"]));
        assert!(time_us > 0.0);
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b.abs();
        assert!(near(number(&row["algbw_gbytes_per_s"]), size / time_us / 1e3), "{row}");
        assert!(near(number(&row["msgs_per_s"]), 1e6 / time_us), "{row}");
        let latency = &row["latency_us"];
        assert!(
            number(&latency["p50"]) > 0.0 && number(&latency["p50"]) <= number(&latency["p99"])
        );
        assert!(number(&latency["p99"]) <= number(&latency["p9999"]), "{row}");
        assert!(number(&row["cpu_percent"]) > 0.0, "{row}");
        assert!(number(&row["peer_cpu_percent"]) > 0.0, "{row}");
    }
    // With the JSON on stdout the table is on stderr.
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    let (head, table) = lines.split_at(lines.len() - rows.len());
    assert!(head.iter().all(|line| line.starts_with('#')), "{}", outcome.stderr);
    assert!(table.iter().all(|line| line.starts_with("  ")), "{}", outcome.stderr);
    let titles = head[head.len() - 2];
    assert!(titles.contains("size") && titles.ends_with("#wrong"), "{titles}");
    for title in ["# time: ", "# p50, p99: ", "# cpu: "] {
        assert!(head.iter().any(|line| line.starts_with(title)), "{}", outcome.stderr);
    }
    assert!(lines.iter().all(|line| line.len() <= 80), "{}", outcome.stderr);
}

#[test]
fn groups_queue_pairs_and_adaptive_routing_change_nothing_about_the_bytes() {
    for flags in [
        &["--recvs", "8", "--window", "16"][..],
        &["--recvs", "3", "--window", "1"],
        &["--qps", "4"],
        &["--adaptive-routing", "--qps", "2", "--recvs", "2"],
        &["--window", "256", "--no-check"],
    ] {
        let sizes = ["perf", "-b", "1", "-e", "40000", "-f", "200", "-n", "20", "--json", "-"];
        let outcome = run(&[&sizes[..], flags].concat());
        let result = json(&outcome.ok().stdout);
        let rows = result["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 3, "{flags:?}");
        assert!(rows.iter().all(|row| row["wrong"] == 0), "{flags:?}: {result}");
        assert!(rows.iter().all(|row| row["iters"].as_u64() >= Some(20)), "{flags:?}: {result}");
    }
}

#[test]
fn messages_over_tcp_are_measured_too() {
    // The longest is more than sockets take at a time.
    for flags in [&["-b", "0", "-e", "20M", "-f", "300"][..], &["-e", "64K", "--recvs", "4"]] {
        let env = [("INVAR_TRANSPORT", "socket"), ("NCCL_SOCKET_IFNAME", "lo")];
        let outcome = run_in(&env, &[&["perf", "-n", "20", "--json", "-"], flags].concat());
        let result = json(&outcome.ok().stdout);
        assert_eq!(result["transport"], "socket");
        assert_eq!((&result["nic"], &result["peer_nic"]), (&"lo".into(), &"lo".into()));
        assert!(result["qps"].is_null() && result["path_mtu"].is_null(), "{result}");
        let rows = result["rows"].as_array().unwrap();
        assert!(rows.len() > 3 && rows.iter().all(|row| row["wrong"] == 0), "{flags:?}: {result}");
    }
}

#[test]
fn json_goes_into_a_file_and_the_table_to_stdout() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("results.json");
    let path = file.to_str().unwrap();
    let devices = json(&run(&["devices", "--json"]).stdout);
    let nic = devices[0]["name"].as_str().unwrap().to_owned();
    let outcome = run(&["perf", "-b", "8", "-e", "8", "-n", "5", "--nic", &nic, "--json", path]);
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(json(&text)["nic"], nic);
    let is_row = |line: &&str| !line.starts_with('#');
    assert_eq!(outcome.ok().stdout.lines().filter(is_row).count(), 1);
    assert_eq!(outcome.stderr, "");
}

#[test]
fn a_run_that_fails_leaves_the_results_of_the_last_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("results.json");
    std::fs::write(&file, "the results of last week\n").unwrap();
    let connect = unused::address().to_string();
    let outcome = run(&["perf", "--connect", &connect, "--json", file.to_str().unwrap()]);
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!((outcome.status, text.as_str()), (Some(3), "the results of last week\n"));
    let outcome = run(&["perf", "--connect", &connect, "--plot", "/nowhere/x.svg"]);
    outcome.ended(FAILED, "invar: creating /nowhere/x.svg: ");
}

#[test]
fn a_run_leaves_a_picture_a_histogram_and_results_to_compare() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (plot, before, after) = (path("plot.svg"), path("before.json"), path("after.json"));
    let sizes = ["perf", "-b", "8", "-e", "4K", "-f", "512", "-n", "20"];
    let extras = ["--plot", &plot, "--histogram", "--json", &before];
    let outcome = run(&[&sizes[..], &extras].concat());
    let lines: Vec<&str> = outcome.ok().stdout.lines().collect();
    let percentiles =
        |line: &&&str| line.contains("half round trips in us") && line.contains("p99.99");
    assert_eq!(lines.iter().filter(percentiles).count(), 2, "{}", outcome.stdout);
    assert!(lines.last().unwrap().starts_with("# <= "), "{}", outcome.stdout);
    assert!(std::fs::read_to_string(&plot).unwrap().starts_with("<svg "));
    run(&[&sizes[..], &["--json", &after]].concat()).ok();
    let outcome = run(&["perf", "--compare", &before, &after]);
    let rows = outcome.ok().stdout.lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(rows, 2, "{}", outcome.stdout);
    let outcome = run(&["perf", "--compare", &before, &plot]);
    outcome.ended(USAGE, "plot.svg: no results of invar perf --json");
}

#[test]
fn both_ways_at_once_every_byte_arrives() {
    for (transport, flags) in [
        ("soft", &["--recvs", "4", "--window", "8"][..]),
        ("soft", &["--qps", "2"]),
        ("socket", &["--window", "4"]),
    ] {
        let sizes = ["perf", "--bidirectional", "-b", "8", "-e", "1M", "-f", "512", "-n", "24"];
        let env = [("INVAR_TRANSPORT", transport), ("NCCL_SOCKET_IFNAME", "lo")];
        let outcome = run_in(&env, &[&sizes[..], flags, &["--json", "-"]].concat());
        let result = json(&outcome.ok().stdout);
        assert_eq!(result["bidirectional"], true);
        for row in result["rows"].as_array().unwrap() {
            assert_eq!((&row["wrong"], &row["iters"]), (&0.into(), &24.into()), "{row}");
            let number = |name: &str| row[name].as_f64().unwrap();
            let rate = number("msgs_per_s") * number("time_us");
            assert!((rate - 2e6).abs() < 1.0, "two messages in the time of one: {row}");
        }
    }
}

#[test]
fn a_rate_and_a_duration_bound_the_timed_messages() {
    let flags = ["--duration", "0.1", "--rate", "0.1", "--json", "-"];
    let outcome = run(&[&["perf", "-b", "4K", "-e", "4K"][..], &flags].concat());
    let result = json(&outcome.ok().stdout);
    let row = &result["rows"][0];
    // A tenth of a gigabit in a second is 0.0125 GB/s. The first message waits for nothing.
    let bandwidth = row["algbw_gbytes_per_s"].as_f64().unwrap();
    assert!(bandwidth < 0.0150, "{row}");
    assert_eq!(row["wrong"], 0);
}

#[test]
fn settings_of_the_environment_hold_for_both_processes() {
    let mut command = invar(&["perf", "-b", "64", "-e", "64", "-n", "10", "--json", "-"]);
    command.env("INVAR_FIFO_DEPTH", "8").env("NCCL_IB_QPS_PER_CONNECTION", "3");
    command.env("NCCL_IB_ADAPTIVE_ROUTING", "1");
    let outcome = Run::start(&mut command).wait();
    let result = json(&outcome.ok().stdout);
    assert_eq!(result["qps"], 3);
    assert_eq!(result["window"], 8);
    assert_eq!(result["adaptive_routing"], true);
    assert_eq!(result["rows"][0]["wrong"], 0);
}

#[test]
fn a_run_without_a_number_of_messages_finds_its_own() {
    let outcome = run(&["perf", "-b", "4K", "-e", "4K", "--json", "-"]);
    let result = json(&outcome.ok().stdout);
    assert!(result["rows"][0]["iters"].as_u64() > Some(10), "{result}");
}
