//! Wrong bytes are counted, and are a status of their own.

use std::io::Write;
use std::net::{TcpListener, TcpStream};

use invar_core::auth::{HELLO_BYTES, PROOF_BYTES};

use crate::*;

/// Passes the proof on, and then lines, `alter`ed.
fn pass_on(mut from: TcpStream, mut to: TcpStream, alter: impl Fn(String) -> String) {
    let mut proof = [0; HELLO_BYTES + PROOF_BYTES];
    for part in proof.chunks_mut(HELLO_BYTES) {
        from.read_exact(part).unwrap();
        to.write_all(part).unwrap();
    }
    for line in BufReader::new(from).lines().map_while(Result::ok) {
        if to.write_all((alter(line) + "\n").as_bytes()).is_err() {
            break;
        }
    }
}

/// The seed is what the pattern of all bytes depends on.
fn with_another_seed(line: String) -> String {
    match serde_json::from_str::<serde_json::Value>(&line) {
        Ok(mut request) if !request["seed"].is_null() => {
            request["seed"] = 1.into();
            request.to_string()
        }
        _ => line,
    }
}

/// A run whose client and server are told something else than the other says.
fn measure(
    alter_request: fn(String) -> String,
    alter_reply: impl Fn(String) -> String + Send + 'static,
) -> Outcome {
    let (server, addr) = server(&mut invar(&["perf", "--server", "127.0.0.1:0"]));
    let middle = TcpListener::bind("127.0.0.1:0").unwrap();
    let middle_addr = middle.local_addr().unwrap().to_string();
    let flags = ["-b", "4096", "-e", "4096", "-n", "10", "-w", "0", "--json", "-"];
    let client =
        Run::start(&mut invar(&[&["perf", "--connect", &middle_addr], &flags[..]].concat()));
    let (client_side, _) = middle.accept().unwrap();
    let server_side = TcpStream::connect(addr).unwrap();
    let (back_from, back_to) = (server_side.try_clone().unwrap(), client_side.try_clone().unwrap());
    let back = thread::spawn(move || pass_on(back_from, back_to, alter_reply));
    pass_on(client_side, server_side, alter_request);
    let outcome = client.wait();
    drop(server);
    back.join().unwrap();
    outcome
}

/// The wrong bytes of the only row. The JSON and the table must agree.
fn wrong(outcome: &Outcome) -> u64 {
    assert_eq!(outcome.status, Some(1), "{}", outcome.stderr);
    let wrong = json(&outcome.stdout)["rows"][0]["wrong"].as_u64().unwrap();
    let row = outcome.stderr.lines().last().unwrap();
    assert!(row.ends_with(&format!(" {wrong}")), "{row}");
    wrong
}

#[test]
fn a_server_that_expects_other_bytes_finds_all_of_them_wrong() {
    let wrong = wrong(&measure(with_another_seed, |line| line));
    // 64 messages in full, and of one byte in 256 it does not show.
    assert!(wrong > 64 * 4000, "{wrong}");
}

#[test]
fn a_server_may_say_any_number_of_wrong_bytes() {
    let many = format!("\"wrong\":{}", u64::MAX);
    let outcome = measure(|line| line, move |line| line.replace("\"wrong\":0", &many));
    assert_eq!(wrong(&outcome), u64::MAX);
}

#[test]
fn what_a_server_calls_its_device_moves_no_cursor() {
    let name = |line: String| line.replace("\"nic\":\"", "\"nic\":\"\\u001b[2J\\r\\n");
    let outcome = measure(|line| line, name);
    outcome.ok();
    assert!(outcome.stderr.contains(" to  [2J  soft"), "{:?}", outcome.stderr);
    assert!(!outcome.stderr.contains('\u{1b}') && !outcome.stderr.contains('\r'));
}
