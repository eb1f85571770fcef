//! `invar perf --op`: a queue pair without the protocol.

use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};

use invar::raw::{Session, Side, queue_pair};
use invar::{Device, Handle, Settings, Wire};
use invar_core::auth::{Secret, Service};
use invar_core::hex::Hex;
use invar_testkit::insider;

use crate::*;

const SHORT: [&str; 9] = ["-b", "1", "-e", "64K", "-f", "250", "-n", "20", "--json"];

fn rows(result: &serde_json::Value) -> &Vec<serde_json::Value> {
    result["rows"].as_array().expect("rows")
}

#[test]
fn each_operation_is_measured_and_every_byte_is_right() {
    for op in ["write", "read", "send"] {
        for flags in [&[][..], &["--bidirectional"], &["--window", "1", "--rate", "5"]] {
            let outcome = run(&[&["perf", "--op", op][..], &SHORT, &["-"], flags].concat());
            let result = json(&outcome.ok().stdout);
            assert_eq!((&result["op"], &result["qps"]), (&op.into(), &1.into()));
            assert_eq!(rows(&result).len(), 3, "{op} {flags:?}: {result}");
            for row in rows(&result) {
                assert_eq!((&row["wrong"], &row["iters"]), (&0.into(), &20.into()), "{op}: {row}");
                assert!(row["latency_us"]["p50"].as_f64() > Some(0.0), "{op}: {row}");
                assert!(row["time_us"].as_f64() > Some(0.0), "{op}: {row}");
            }
            let of = if op == "read" { "a whole READ" } else { "half a round trip" };
            assert!(outcome.stderr.contains(&format!("# p50, p99: {of},")), "{}", outcome.stderr);
            assert!(outcome.stderr.lines().all(|line| line.len() <= 80), "{}", outcome.stderr);
        }
    }
}

#[test]
fn packets_with_tags_and_empty_reads_and_sends_pass() {
    for op in ["write", "read", "send"] {
        let first = if op == "write" { "1" } else { "0" };
        let sizes = ["-b", first, "-e", "9", "-f", "9", "-n", "9", "--json", "-"];
        let args = [&["perf", "--op", op], &sizes[..]].concat();
        let result = json(&run_in(&[("INVAR_SOFT_AUTH", "1")], &args).ok().stdout);
        assert!(rows(&result).len() >= 2, "{result}");
        assert!(rows(&result).iter().all(|row| row["wrong"] == 0), "{op}: {result}");
    }
}

#[test]
fn a_server_follows_the_operations_of_its_clients() {
    let (_server, addr) = server(&mut invar(&["perf", "--server", "127.0.0.1:0", "--keep"]));
    for op in ["send", "message", "read", "write"] {
        let flags = ["perf", "--connect", &addr, "--op", op, "-b", "8", "-e", "8", "-n", "4"];
        run(&[&flags[..], &["--histogram"]].concat()).ok();
    }
}

/// A client's connection to the server at this address.
fn client(addr: &str) -> (TcpStream, Session) {
    let mut client = TcpStream::connect(addr).unwrap();
    let session = insider::prove(&mut client, Secret::PUBLIC, Service::Perf);
    (client, session)
}

/// A client's setup with these fields.
fn setup(fields: &str) -> String {
    let rest = r#""transport":"soft","seed":1,"qps":1,"recvs":1,"size_max":8,"region_bytes":64"#;
    format!("{{\"say\":\"Setup\",\"adaptive_routing\":null,{rest},{fields}}}\n")
}

/// Sends lines to the server, and returns all that the server says until it closes the connection.
fn answers(mut client: TcpStream, lines: &str) -> String {
    client.write_all(lines.as_bytes()).unwrap();
    let mut said = String::new();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The server may reset the connection after its last line.
    let _ = client.read_to_string(&mut said);
    said
}

#[test]
fn a_client_with_a_senseless_queue_pair_is_told_so_and_the_next_one_is_served() {
    let (_server, addr) = server(&mut invar(&["perf", "--server", "127.0.0.1:0", "--keep"]));
    for (fields, words) in [
        (r#""op":"write","queue_pair":"00ff""#, "shorter than its preface"),
        (&format!(r#""op":"read","queue_pair":"{}""#, "00".repeat(672)), "FIFO depth 0"),
        (r#""op":"send","queue_pair":"0f0""#, "pairs of hex digits"),
        (r#""op":"send""#, "with the fields of another"),
        (r#""op":"atomic","queue_pair":"00""#, "unknown variant `atomic`"),
    ] {
        let said = answers(client(&addr).0, &setup(fields));
        assert!(said.contains("\"Failed\"") && said.contains(words), "{fields}: {said}");
    }
    run(&["perf", "--connect", &addr, "--op", "read", "-b", "8", "-e", "8", "-n", "4"]).ok();
}

#[test]
fn a_server_sends_nothing_to_an_address_from_which_nothing_has_come() {
    let (_server, addr) = server(&mut invar(&["perf", "--server", "127.0.0.1:0"]));
    let victim = UdpSocket::bind("127.0.0.9:0").unwrap();
    let (client, session) = client(&addr);
    let (local, settings) = (Ipv4Addr::LOCALHOST.into(), Settings::default());
    let device = Device::open_at_for(local, &settings).unwrap();
    let us = (Side::Connector, session);
    let mut info = queue_pair(&device, &settings, us, local, 128).unwrap().info();
    // The UDP port and the GID are those of the victim.
    info[24..26].copy_from_slice(&victim.local_addr().unwrap().port().to_le_bytes());
    info[640..656].copy_from_slice(&Ipv4Addr::new(127, 0, 0, 9).to_ipv6_mapped().octets());
    let pair = format!(r#""op":"write","both_ways":true,"queue_pair":"{}""#, Hex(&info));
    let pass = r#"{"say":"Pass","number":1,"kind":"Exchange","size":8,"messages":64,"slots":1}"#;
    let said = answers(client, &format!("{}{pass}\n", setup(&pair)));
    let words = "the client asks for a pass before its queue pair has sent anything";
    assert!(said.contains("\"Ready\"") && said.contains(words), "{said}");
    victim.set_nonblocking(true).unwrap();
    let come = victim.recv(&mut [0; 64]).map_err(|error| error.kind());
    assert_eq!(come, Err(ErrorKind::WouldBlock));
}

#[test]
fn a_client_learns_nothing_of_another_host_by_the_time_at_which_its_connections_end() {
    let mut command = invar(&["perf", "--server", "127.0.0.1:0"]);
    let (_server, addr) = server(command.env("INVAR_CONNECT_TIMEOUT_MS", "1500"));
    // The host of the client is another one, and refuses at once.
    let place = "127.0.0.9:1";
    let handle = Handle::new(place.parse().unwrap(), Wire::Invar, &[7; 16]);
    let (mut control, start) = (client(&addr).0, Instant::now());
    control.write_all(setup(&format!(r#""handle":"{}""#, handle.hex())).as_bytes()).unwrap();
    control.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut control = BufReader::new(control);
    let mut line = String::new();
    while !line.contains("\"Ready\"") {
        line.clear();
        assert!(control.read_line(&mut line).unwrap() > 0, "the server closed the connection");
    }
    let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
    let theirs = Handle::from_hex(ready["handle"].as_str().unwrap()).unwrap();
    let mut data = TcpStream::connect(theirs.addr(Wire::Invar).unwrap()).unwrap();
    insider::call(&mut data, &theirs, Service::Rdma);
    data.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The server may reset its connections when it closes them.
    let _ = data.read_to_end(&mut Vec::new());
    let of_data = start.elapsed();
    assert!(of_data >= Duration::from_millis(1500), "the data connection: {of_data:?}");
    let mut said = String::new();
    let _ = control.read_to_string(&mut said);
    assert!(said.contains(&format!("no data connection to {place} came about")), "{said}");
}

#[test]
fn a_client_with_long_messages_is_told_how_the_server_gives_it_more_memory() {
    let args = ["perf", "--server", "127.0.0.1:0", "--client-memory", "6M"];
    let (_server, addr) = server(&mut invar(&args));
    let measure = |size| run(&["perf", "--connect", &addr, "-b", size, "-e", size, "-n", "1"]);
    let outcome = measure("4M");
    outcome.ended(FAILED, "perf --server --client-memory 12M");
    measure("1M").ok();
}
