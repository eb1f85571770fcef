//! Refusals take one line, and the exit status says whose fault they are.

use std::io::Write;
use std::net::{TcpListener, TcpStream};

use invar_core::auth::{Hello, NONCE_BYTES, Secret, Service};
use invar_testkit::{insider, unused};

use crate::*;

#[test]
fn flags_that_cannot_be_are_named_with_what_is_allowed() {
    for (args, words) in [
        (&["perf", "-b", "x"][..], &["--min-bytes", "number of bytes"][..]),
        (&["perf", "-e", "3G"], &["--max-bytes", "from 0 to 2147483647"]),
        (&["perf", "-b", "9", "-e", "8"], &["--min-bytes 9 is more than --max-bytes 8"]),
        (&["perf", "-f", "1"], &["--factor"]),
        (&["perf", "-n", "0"], &["--iters"]),
        (&["perf", "--window", "257"], &["--window", "256"]),
        (&["perf", "--recvs", "9"], &["--recvs", "1..=8"]),
        (&["perf", "--qps", "0"], &["--qps", "1..=128"]),
        (&["perf", "--qps", "129"], &["--qps", "1..=128"]),
        (&["perf", "--nic", "mlx5_9"], &["--nic mlx5_9: there is only ", "soft0"]),
        (&["perf", "--server", "[::1]:0", "--nic", "mlx5_9"], &["--nic mlx5_9"]),
        (&["perf", "--server", "--connect", "h:1"], &["--connect", "cannot be used with"]),
        (&["perf", "--server", "--qps", "4"], &["--qps", "cannot be used with"]),
        (&["perf", "--keep"], &["--server"]),
        (&["perf", "--client-memory", "1G"], &["--server"]),
        (&["perf", "--server", "--client-memory", "2T"], &["--client-memory", "from 0 to 1099"]),
        (&["perf", "--port", "5000"], &["--port is of --server and --connect"]),
        (&["perf", "--chaos", "--window", "8"], &["--window", "cannot be used with"]),
        (&["perf", "-b", "1M", "-e", "1M", "--rate", "0.001"], &["--rate", "1048576 bytes", "5s"]),
        (&["perf", "--connect", ""], &["'' is no HOST and no HOST:PORT"]),
        (&["perf", "--server", "10.0.0.1:x"], &["'10.0.0.1:x' is no HOST and no HOST:PORT"]),
        (&["perf", "--soft-port", "7-6"], &["'7-6' for '--soft-port", "a range like"]),
        (&["perf", "--op", "write", "--qps", "2"], &["--op write: it has one queue pair"]),
        (
            &["perf", "--op", "read", "--recvs", "2"],
            &["--op read: only messages have grouped receives"],
        ),
        (
            &["perf", "--op", "send", "--adaptive-routing"],
            &["--op send: only messages have --adaptive"],
        ),
        (&["perf", "--op", "write", "-b", "0"], &["--op write: the peer waits for the last byte"]),
        (&["perf", "--frobnicate"], &["--frobnicate"]),
        (&["coll", "all_reduce", "--port-range", "x"], &["'x' for '--port-range", "a range like"]),
        (&["coll", "all_reduce", "--ranks", "0"], &["--ranks"]),
        (
            &["coll", "all_reduce", "-b", "8", "-e", "4"],
            &["--min-bytes 8 is more than --max-bytes 4"],
        ),
        (&["coll", "broadcast", "-r", "2"], &["--root-rank 2: of 2 ranks the last is 1"]),
        (&["coll", "all_reduce", "--rank", "0"], &["--root"]),
        (&["coll", "all_reduce", "--rank", "0", "--root", "[::1]:0"], &["--root [::1]:0: no rank"]),
        (&["coll", "all_reduce", "-d", "int9"], &["no such type"]),
        (&["coll", "all_reduce", "-o", "mean"], &["no such reduction"]),
        (&["coll", "all_divide"], &["all_divide"]),
        (&["doctor", "gid"], &["gid: there is no such check; there is settings, "]),
        (&["doctor", "--root", "/nonesuch"], &["--root /nonesuch: there is no such folder"]),
        (&["doctor", "--list", "gids"], &["--list"]),
        (&["doctor", "--yaml"], &["--yaml"]),
        (&["doctor", "--peer", ""], &["'' is no HOST and no HOST:PORT"]),
        (&["doctor", "--peer", "h", "--serve"], &["cannot be used with"]),
        (&["doctor", "--peer", "h", "--hosts", "/dev/null"], &["cannot be used with"]),
        (&["doctor", "--hosts", "/nonesuch"], &["--hosts /nonesuch: No such file"]),
        (&["doctor", "--hosts", "/dev/null"], &["--hosts /dev/null:1: the file names no host"]),
        (&["doctor", "--hosts", "/dev/zero"], &["--hosts /dev/zero: "]),
        (&["doctor", "--serve", "10.0.0.1:x"], &["'10.0.0.1:x' is no HOST and no HOST:PORT"]),
        (&["settings", "INVAR_NONESUCH"], &["INVAR_NONESUCH: Invar reads no such variable"]),
        (&["perv"], &["perv"]),
    ] {
        // Rank 0 without a secret makes one up, and says so.
        let outcome = run_in(&[("INVAR_COLL_SECRET", "word")], args);
        assert_eq!(outcome.status, USAGE, "{args:?}: {}", outcome.stderr);
        let line = outcome.line();
        assert!(words.iter().all(|word| line.contains(word)), "{args:?}: {line}");
        assert_eq!(outcome.stdout, "");
    }
}

#[test]
fn variables_that_cannot_be_are_named_with_what_is_allowed() {
    for (name, value, word) in [
        ("NCCL_IB_TIMEOUT", "99", "a number from 0 to 31"),
        ("INVAR_WIRE", "verbs", "one of invar nccl-2.14"),
        ("INVAR_TRANSPORT", "ib", "there is no such device"),
    ] {
        let outcome = run_in(&[(name, value)], &["perf", "-e", "8"]);
        outcome.ended(USAGE, &format!("{name}={value}: "));
        outcome.ended(USAGE, word);
    }
    let outcome = run_in(&[("INVAR_FIFO_DEPTH", "8")], &["perf", "-e", "8", "--window", "16"]);
    outcome.ended(USAGE, "--window 16: ");
    for (depth, status) in [("4", USAGE), ("8", Some(0))] {
        let outcome = run_in(&[("INVAR_FIFO_DEPTH", depth)], &["perf", "-e", "8", "-n", "2"]);
        assert_eq!(outcome.status, status, "{}", outcome.stderr);
    }
}

#[test]
fn variables_that_nobody_reads_are_warned_of_once_with_the_name_that_is_meant() {
    for args in
        [&["devices"][..], &["perf", "-e", "8", "-n", "2"], &["coll", "all_reduce", "-e", "8"]]
    {
        let mut command = invar(args);
        command
            .env("INVAR_TRANSPRT", "soft")
            .env("NCCL_IB_TIMOUT", "3")
            .env("NCCL_IB_FIFO_TC", "1");
        let outcome = Run::start(command.env("INVAR_LOG", "warn")).wait();
        let text = "is set, and neither Invar nor NCCL reads a variable of that name";
        for (name, meant) in
            [("INVAR_TRANSPRT", "INVAR_TRANSPORT"), ("NCCL_IB_TIMOUT", "NCCL_IB_TIMEOUT")]
        {
            let line = format!("invar: warning: {name} {text}: is {meant} meant?\n");
            assert_eq!(outcome.ok().stderr.matches(&line).count(), 1, "{}", outcome.stderr);
        }
        assert_eq!(outcome.stderr.matches(text).count(), 2, "{}", outcome.stderr);
        let quiet = Run::start(command.env("INVAR_LOG", "error")).wait();
        assert!(!quiet.ok().stderr.contains(text), "{}", quiet.stderr);
    }
}

#[test]
fn what_tcp_does_not_have_is_refused() {
    for (args, ifname, line) in [
        (&["--qps", "4"][..], "lo", "--qps: lo goes over TCP, without queue pairs"),
        (&["--adaptive-routing"], "lo", "--adaptive-routing: lo goes over TCP, without queue"),
        (&["--op", "read"], "lo", "--op read: lo goes over TCP"),
        (&[], "none", "INVAR_TRANSPORT=socket: there is no such device; NCCL_SOCKET_IFNAME and"),
    ] {
        let env = [("INVAR_TRANSPORT", "socket"), ("NCCL_SOCKET_IFNAME", ifname)];
        run_in(&env, &[&["perf", "-e", "8"], args].concat()).ended(USAGE, line);
    }
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let unused = unused::address().to_string();
    let outcome = run(&["perf", "--connect", &unused]);
    let why =
        "Connection refused (os error 111), so nobody listens there: does `invar perf --server`";
    outcome.ended(FAILED, &format!("invar: connecting to {unused}: {why}"));
}

#[test]
fn a_server_of_something_else_or_of_another_version_is_named() {
    let other_version = hello_of_version(77);
    for (proves, says, word) in [
        (false, &b"SSH-2.0-OpenSSH_9.2\r\n"[..], "is no server of invar perf: it says \"SSH-2.0"),
        (false, &other_version, "the peer speaks version 77 of Invar's wire, this side version"),
        (true, b"{\"say\":\"What?\"}\n", "sent an invalid message"),
        (true, b"{\"say\":\"Failed\",\"text\":\"no more\"}\n", "the server: no more"),
        (
            true,
            b"{\"say\":\"Failed\",\"text\":\"no\\nmore\\u001b[2J\"}\n",
            "the server: no more [2J",
        ),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let client = Run::start(&mut invar(&["perf", "--connect", &addr]));
        let (mut stream, _) = listener.accept().unwrap();
        if proves {
            insider::answer_with(&mut stream, Secret::PUBLIC, Service::Perf);
        }
        stream.write_all(says).unwrap();
        client.wait().ended(FAILED, word);
    }
}

fn hello_of_version(version: u8) -> [u8; 32] {
    let mut hello = Hello::new(Service::Perf, [1; NONCE_BYTES]).to_bytes();
    hello[8] = version;
    hello
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let outcome = run(&["perf", "--server", &addr]);
    outcome.ended(FAILED, &format!("listening at {addr}: Address already in use"));
    // Both processes of this host have the flag.
    let port = taken.local_addr().unwrap().port();
    let range = port.to_string();
    let outcome = run(&["perf", "--server", "127.0.0.1:0", "--port-range", &range]);
    let says = format!("INVAR_PORT_RANGE={port}: port {port} is taken at 127.0.0.1");
    outcome.ended(FAILED, &says);
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    let outcome = run(&["perf", "-e", "8", "-n", "1", "--json", "/no/such/place.json"]);
    outcome.ended(FAILED, "creating /no/such/place.json: No such file");
}

#[test]
fn a_server_turns_away_who_is_no_client_and_serves_the_next() {
    let (server, addr) = server(&mut invar(&["perf", "--server", "127.0.0.1:0"]));
    let mut stranger = TcpStream::connect(&addr).unwrap();
    stranger.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    run(&["perf", "--connect", &addr, "-e", "8", "-n", "2"]).ok();
    server.wait().ended(Some(0), "was turned away: it begins with [47, 45, 54, 20,");
}

#[test]
fn who_proves_to_be_of_perf_and_says_nothing_sensible_ends_no_server() {
    let (server, addr) = server(&mut invar(&["perf", "--server", "127.0.0.1:0"]));
    for says in [&b""[..], b"{\"say\":\"Bye\"}\n", b"\n", &[b'x'; 8192]] {
        let mut stranger = TcpStream::connect(&addr).unwrap();
        insider::prove(&mut stranger, Secret::PUBLIC, Service::Perf);
        stranger.write_all(says).unwrap();
    }
    run(&["perf", "--connect", &addr, "-e", "8", "-n", "2"]).ok();
    server.wait().ok();
}

#[test]
fn callers_who_dawdle_keep_no_client_of_a_server_waiting() {
    let (server, addr) = server(&mut invar(&["perf", "--server", "127.0.0.1:0"]));
    let hello = Hello::new(Service::Perf, [1; NONCE_BYTES]).to_bytes();
    let dawdle = |n: usize| {
        let mut stream = TcpStream::connect(&addr).unwrap();
        match n % 4 {
            0 => {}
            1 => stream.write_all(&hello[..9]).unwrap(),
            2 => stream.write_all(&hello).unwrap(),
            _ => {
                let start = Instant::now();
                insider::prove(&mut stream, Secret::PUBLIC, Service::Perf);
                assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
                stream.write_all(b"{\"say\":").unwrap();
            }
        }
        stream
    };
    // Four times as many as the server hears out at a time.
    let _dawdling: Vec<TcpStream> = (0..256).map(dawdle).collect();
    run(&["perf", "--connect", &addr, "-e", "8", "-n", "2"]).ok();
    server.wait().ok();
}

#[test]
fn a_server_that_is_busy_says_so() {
    let (_server, addr) = server(&mut invar(&["perf", "--server", "127.0.0.1:0"]));
    let endless = ["perf", "--connect", &addr, "-e", "8", "-n", "100000000"];
    let mut first = Run::start(&mut invar(&endless));
    assert!(first.line().starts_with("# invar perf"), "it is served");
    let second = run(&["perf", "--connect", &addr]);
    second.ended(FAILED, "invar: the server: busy with another client\n");
}

#[test]
fn the_status_tells_where_nobody_reads_stderr() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = invar(&["perf", "--nic", "nope"]).stderr(writer).status().unwrap();
    assert_eq!(status.code(), USAGE);
}
